"""ONNX Runtime with the graph that torch exports from the `transformers` model: in float32 and in int8."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.engine import PaddedEngine, Peer, Source
from benchmarks.peers.exported import StatesOnly, converted
from benchmarks.peers.transformers_models import SORTED

GRAPH, INT8 = "model.onnx", "model-int8.onnx"


def load(source: Source) -> PaddedEngine:
    """Export once, then load with all graph optimizations and as many threads as torch uses."""
    tokenizer, names = converted(source, GRAPH, _export)
    return _engine(source, GRAPH, tokenizer, names)


def load_int8(source: Source) -> PaddedEngine:
    """Export and quantize once: weights by channel ahead of time, activations of each call by tensor."""
    tokenizer, names = converted(source, GRAPH, _export)
    if not (source.work / INT8).exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it recommends a preparation that only static quantization needs
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                quantize_dynamic(
                    source.work / GRAPH,
                    source.work / INT8,
                    per_channel=True,
                    weight_type=QuantType.QInt8,
                )
        finally:
            logging.disable(before)
    return _engine(source, INT8, tokenizer, names)


def _export(model: StatesOnly, inputs: tuple[Tensor, ...], path: Path) -> None:
    axes = {name: {0: "texts", 1: "tokens"} for name in (*model.names, "states")}
    torch.onnx.export(
        model,
        inputs,
        str(path),
        input_names=list(model.names),
        output_names=["states"],
        dynamic_axes=axes,
        dynamo=False,
    )


def _engine(source: Source, graph: str, tokenizer: Any, names: tuple[str, ...]) -> PaddedEngine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        str(source.work / graph), options, providers=["CPUExecutionProvider"]
    )
    taken = [one.name for one in session.get_inputs()]

    def run(inputs: dict[str, Any]) -> Any:
        given = {name: x.numpy() for name, x in inputs.items() if name in taken}
        return torch.from_numpy(session.run(None, given)[0])

    return PaddedEngine(tokenizer, names, run, source)


MODULES = ("transformers", "onnx", "onnxruntime")

ONNX_RUNTIME = (
    Peer(
        "onnxruntime",
        "float32",
        f"exported by torch, CPU provider; {SORTED}",
        load,
        MODULES,
        holds_scores=True,
        only_cpu=True,
    ),
    Peer(
        "onnxruntime int8",
        "int8",
        f"quantize_dynamic, weights by channel, CPU provider; {SORTED}",
        load_int8,
        MODULES,
        holds_scores=True,
        only_cpu=True,
    ),
)
