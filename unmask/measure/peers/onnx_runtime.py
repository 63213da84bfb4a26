"""ONNX Runtime with the graph that torch exports from the `transformers` model."""

import warnings
from typing import Any

from unmask.measure.peers.engine import PaddedEngine, Peer, Source
from unmask.measure.peers.exported import StatesOnly, example
from unmask.measure.peers.transformers_models import SORTED, quiet_load

GRAPH = "model.onnx"


def load(source: Source) -> PaddedEngine:
    """Export once, then load with all graph optimizations and as many threads as torch uses."""
    import onnxruntime
    import torch

    model, tokenizer, names = quiet_load(source, attn_implementation="eager", dtype=torch.float32)
    path = source.work / GRAPH
    if not path.exists():
        inputs = example(tokenizer, names)
        axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "states")}
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                StatesOnly(model, names),
                inputs,
                str(path),
                input_names=list(names),
                output_names=["states"],
                dynamic_axes=axes,
                dynamo=False,
            )
    del model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    taken = [one.name for one in session.get_inputs()]

    def run(inputs: dict[str, Any]) -> Any:
        given = {name: x.numpy() for name, x in inputs.items() if name in taken}
        return torch.from_numpy(session.run(None, given)[0])

    return PaddedEngine(tokenizer, names, run, source)


ONNX_RUNTIME = Peer(
    "onnxruntime",
    "float32",
    f"exported by torch, CPU provider; {SORTED}",
    load,
    (("transformers", "transformers"), ("onnx", "onnx"), ("onnxruntime", "onnxruntime")),
    holds_scores=True,
)
