"""OpenVINO with the `transformers` model: in float32, and in its default precision (often bfloat16)."""

import warnings
from collections.abc import Callable
from typing import Any

from unmask.measure.peers.engine import PaddedEngine, Peer, Source
from unmask.measure.peers.exported import StatesOnly, example
from unmask.measure.peers.transformers_models import SORTED, quiet_load

GRAPH = "openvino.xml"


def start(precision: str | None) -> Callable[[Source], PaddedEngine]:
    """A function that loads the engine; ``precision`` None uses the library's default."""

    def load(source: Source) -> PaddedEngine:
        import openvino
        import torch

        model, tokenizer, names = quiet_load(source, attn_implementation="eager", dtype=torch.float32)
        path = source.work / GRAPH
        if not path.exists():
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore")
                inputs = example(tokenizer, names)
                graph = openvino.convert_model(StatesOnly(model, names), example_input=inputs)
            openvino.save_model(graph, path, compress_to_fp16=False)
        del model
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        if precision is not None:
            settings["INFERENCE_PRECISION_HINT"] = precision
        compiled = openvino.Core().compile_model(path, "CPU", settings)

        def run(inputs: dict[str, Any]) -> Any:
            given = [inputs[name].numpy() for name in names]
            return torch.from_numpy(compiled(given, share_inputs=True, share_outputs=False)[0])

        return PaddedEngine(tokenizer, names, run, source)

    return load


MODULES = (("transformers", "transformers"), ("openvino", "openvino"))

OPENVINO = (
    Peer(
        "openvino float32",
        "float32",
        f"float32; {SORTED}",
        start("f32"),
        MODULES,
        holds_scores=True,
    ),
    Peer(
        "openvino",
        "bfloat16",
        f"default precision; {SORTED}",
        start(None),
        MODULES,
        holds_scores=True,
    ),
)
