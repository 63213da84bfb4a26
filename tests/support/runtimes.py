"""ONNX graphs in the runtimes that read them."""

import pytest

from unmask.engines.export import onnx as graphs

RUNTIMES = ("onnxruntime", pytest.param("openvino", marks=pytest.mark.slow))


def in_runtime(name, path):
    """The names of a graph's inputs, and the graph as a function; skips where the runtime is missing."""
    if name == "onnxruntime":
        return graphs._in_onnxruntime(path)
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    # By itself it may compute in bfloat16.
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = tuple(one.any_name for one in compiled.inputs)
    return inputs, lambda given: [*compiled(given).values()]
