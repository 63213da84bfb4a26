"""Match the tensors of a checkpoint with those of its encoder, by name, shape and type. Free of torch."""

from functools import partial
from pathlib import Path

from unmask.errors import CorruptCheckpoint, TensorMismatch
from unmask.spec.shapes import tensor_shapes
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.tensor_report import TensorReport, match_tensors

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of stored weights, as safetensors writes them and as torch does."""
DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")
"""The types that a checkpoint can be loaded in."""


def report_tensors(checkpoint: Checkpoint) -> TensorReport:
    """The status of every tensor of the checkpoint.

    Raises:
        TensorMismatch: a tensor is missing, unexpected, or has a different shape than the spec requires.
    """
    family, shapes = checkpoint.family, tensor_shapes(checkpoint.spec)
    layer_name = partial(family.layer_name, checkpoint.spec)
    report = match_tensors(family.tensor_map, family.prefixes, shapes, checkpoint.tensors, layer_name)
    for ours, sources in report.sources.items():
        first, *rest = shapes[ours]
        concat = report.concats.get(ours)
        rows = (first,) if concat is None else concat.rows_of(first, checkpoint.spec)
        for name, share in zip(sources, rows, strict=True):
            shape, tensor = (share, *rest), checkpoint.tensors[name]
            if tensor.shape != shape:
                raise TensorMismatch(
                    f"the tensor {name} has shape {_by(tensor.shape)} and config.json asks for {_by(shape)}"
                )
            if tensor.dtype not in FLOATS:
                raise TensorMismatch(f"the tensor {name} is of type {tensor.dtype}, which holds no weights")
    return report


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The type in which a checkpoint stores its word embedding, taken as that of its weights."""
    (name,) = report_tensors(checkpoint).sources["embedding.words.weight"]
    return FLOATS[checkpoint.tensors[name].dtype]


def damaged(path: Path, error: Exception) -> CorruptCheckpoint:
    """The error for a file of weights that cannot be read."""
    return CorruptCheckpoint(f"{path} is damaged or incomplete: {error}")


def not_finite_in(name: str, dtype: str) -> CorruptCheckpoint:
    """The error for a stored tensor with infinity or NaN."""
    return CorruptCheckpoint(f"the tensor {name} holds a number that is not finite in {dtype}")


def differs_from_copy(name: str, other: str) -> TensorMismatch:
    """The error for two stored tensors that should be equal."""
    return TensorMismatch(f"the tensor {name} differs from {other}, of which it should be a copy")


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
