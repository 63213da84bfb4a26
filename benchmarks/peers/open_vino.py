"""OpenVINO with the `transformers` model: float32, its default precision (often bfloat16), and int8."""

import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.engine import PaddedEngine, Peer, Source
from benchmarks.peers.exported import StatesOnly, converted
from benchmarks.peers.transformers_models import SORTED

GRAPH, INT8 = "openvino.xml", "openvino-int8.xml"


def start(precision: str | None) -> Callable[[Source], PaddedEngine]:
    """A function that loads the engine; ``precision`` None uses the library's default."""

    def load(source: Source) -> PaddedEngine:
        tokenizer, names = converted(source, GRAPH, _convert)
        return _engine(source, GRAPH, precision, tokenizer, names)

    return load


def load_int8(source: Source) -> PaddedEngine:
    """Convert and quantize once with NNCF: weights and activations, calibrated on ``source.calibration``."""
    tokenizer, names = converted(source, GRAPH, _convert)
    if not (source.work / INT8).exists():
        _quantize(source, tokenizer, names)
    return _engine(source, INT8, None, tokenizer, names)


def _convert(model: StatesOnly, inputs: tuple[Tensor, ...], path: Path) -> None:
    import openvino

    graph = openvino.convert_model(model, example_input=inputs)
    openvino.save_model(graph, path, compress_to_fp16=False)


def _quantize(source: Source, tokenizer: Any, names: tuple[str, ...]) -> None:
    # NNCF draws progress bars on stdout, which holds the report.
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        import nncf
        import openvino

        nncf.set_log_level(logging.ERROR)
        limit = source.max_tokens
        encoded = (
            tokenizer([text], truncation=limit is not None, max_length=limit, return_tensors="np")
            for text in source.calibration
        )
        samples = [[one[name] for name in names] for one in encoded]
        graph = nncf.quantize(
            openvino.Core().read_model(source.work / GRAPH),
            nncf.Dataset(samples),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(samples),
        )
        openvino.save_model(graph, source.work / INT8, compress_to_fp16=False)


def _engine(
    source: Source, graph: str, precision: str | None, tokenizer: Any, names: tuple[str, ...]
) -> PaddedEngine:
    import openvino

    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    if precision is not None:
        settings["INFERENCE_PRECISION_HINT"] = precision
    compiled = openvino.Core().compile_model(source.work / graph, "CPU", settings)

    def run(inputs: dict[str, Any]) -> Any:
        given = [inputs[name].numpy() for name in names]
        return torch.from_numpy(compiled(given, share_inputs=True, share_outputs=False)[0])

    return PaddedEngine(tokenizer, names, run, source)


MODULES = ("transformers", "openvino")

OPENVINO = (
    Peer(
        "openvino float32",
        "float32",
        f"float32; {SORTED}",
        start("f32"),
        MODULES,
        holds_scores=True,
        only_cpu=True,
    ),
    Peer(
        "openvino",
        "bfloat16",
        f"default precision; {SORTED}",
        start(None),
        MODULES,
        holds_scores=True,
        only_cpu=True,
    ),
    Peer(
        "openvino int8",
        "int8",
        f"weights and activations by NNCF, default precision between; {SORTED}",
        load_int8,
        (*MODULES, "nncf"),
        holds_scores=True,
        only_cpu=True,
    ),
)
