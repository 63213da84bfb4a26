"""The tensors of a checkpoint: matched with those of its encoder, and read as numpy arrays. Free of torch.

They match by name, shape and type; arrays are read one at a time from files mapped into memory.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.base.system import forget_mapped
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch
from unmask.spec.embedding_head import QUERY_WEIGHTS
from unmask.spec.shapes import tensor_shapes
from unmask.spec.tensor_map import Stacked
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.tensor_report import TensorReport, match_tensors
from unmask.weights.tensors import (
    MAPPING,
    ROW_WEIGHTS,
    WHOLE_NUMBERS,
    RowsOf,
    StoredTensor,
    in_our_order,
)

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
    rules = family.tensor_map_of(checkpoint.spec)
    report = match_tensors(rules, family.prefixes, shapes, checkpoint.tensors, layer_name)
    for ours, sources in report.sources.items():
        first, *rest = shapes[ours]
        concat = report.concats.get(ours)
        rows = (first,) if concat is None else concat.rows_of(first, checkpoint.spec)
        for name, share in zip(sources, rows, strict=True):
            shape, tensor = (share, *rest), checkpoint.tensors[name]
            rearranged = report.reorders.get(ours)
            if isinstance(rearranged, Stacked):
                shape = rearranged.their_shape(shape, checkpoint.spec)
            if tensor.shape != shape:
                raise TensorMismatch(
                    f"the tensor {name} has shape {_by(tensor.shape)} and config.json asks for {_by(shape)}"
                )
            # A table of int8 numbers means these numbers; layers of whole numbers have scales beside them.
            if tensor.dtype not in FLOATS and (checkpoint.spec.layers or tensor.dtype != "I8"):
                raise TensorMismatch(f"the tensor {name} is of type {tensor.dtype}, which holds no weights")
    return report


def with_first_layers(checkpoint: Checkpoint, count: int | None) -> Checkpoint:
    """The checkpoint with its first layers alone; what follows them reads the states of the last of these.

    Args:
        checkpoint: of all layers.
        count: how many layers; None for all.

    Raises:
        InvalidRequest: there are fewer, or updates of an adapter or of a task are on them.
        TensorMismatch: see `report_tensors`.
    """
    if count is None:
        return checkpoint
    whole_number("layers", count, 1)
    spec, name = checkpoint.spec, checkpoint.source.name
    if count > len(spec.layers):
        raise InvalidRequest(f"layers is {count}, and {name} has {len(spec.layers)}; ask for fewer")
    if checkpoint.adapter is not None or checkpoint.task is not None:
        raise InvalidRequest(
            f"layers is {count}, and the adapter was trained with all {len(spec.layers)} layers of {name}; "
            "leave one of them out"
        )
    if spec.gate is not None and count < len(spec.layers):
        raise InvalidRequest(
            f"layers is {count}, and all {len(spec.layers)} layers of {name} read the embedding through one "
            "matrix, which is not cut; leave layers out"
        )
    sharing = None if spec.sharing is None else spec.sharing[:count]
    shorter = replace(spec, layers=spec.layers[:count], sharing=sharing)
    sources, ours = report_tensors(checkpoint).sources, tensor_shapes(shorter).keys()
    read = {theirs for tensor in sources.keys() & ours for theirs in sources[tensor]}
    deeper = {theirs for tensor in sources.keys() - ours for theirs in sources[tensor]} - read
    tensors = {theirs: stored for theirs, stored in checkpoint.tensors.items() if theirs not in deeper}
    return replace(checkpoint, spec=shorter, tensors=tensors, first_layers=count)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The type in which a checkpoint stores its word embedding, taken as that of its weights."""
    (name,) = report_tensors(checkpoint).sources["embedding.words.weight"]
    return FLOATS.get(checkpoint.tensors[name].dtype, "float32")


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


Float32s = NDArray[np.float32]
STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", **WHOLE_NUMBERS}
"""numpy's types of stored numbers; a bfloat16 is the upper half of a float32."""
BEYOND = {"float32": 2.0**128 - 2.0**103, "bfloat16": 2.0**128 - 2.0**119}
"""The least magnitude that is rounded to infinity."""
AT_ONCE = 1 << 20
"""Numbers that are checked at once."""


class StoredArrays(Mapping[str, Float32s]):
    """The tensors of a checkpoint and of its output's layers, in float32, by our names.

    An array is read when it is asked for, and is often a view of its file. Pages of the file that were read
    for earlier ones are given back to the system, so that memory stays small.

    Updates of an adapter are not applied; `unmask.weights.adapters.adapter` does.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        checkpoint.require_task()
        self._spec, self._report = checkpoint.spec, report_tensors(checkpoint)
        self._stored = {**checkpoint.tensors, **checkpoint.output_tensors}
        self._sources = {**self._report.sources, **{name: (name,) for name in checkpoint.output_tensors}}
        self._files: dict[Path, _MappedFile] = {}
        self._static: dict[str, Float32s] = {}
        if checkpoint.query_weights is not None:
            missing = checkpoint.spec.embedding.vocabulary - len(checkpoint.query_weights)
            self._static[QUERY_WEIGHTS] = np.pad(checkpoint.query_weights, (0, missing))

    def __iter__(self) -> Iterator[str]:
        yield from self._sources
        yield from self._static

    def __len__(self) -> int:
        return len(self._sources) + len(self._static)

    def __contains__(self, name: object) -> bool:
        return name in self._sources or name in self._static

    def __getitem__(self, name: str) -> Float32s:
        if name in self._static:
            return self._static[name]
        parts = [self._read(stored) for stored in self._sources[name]]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return in_our_order(whole, self._report.reorders.get(name), self._spec)

    def parts(self, name: str, rows: int) -> Iterator[Float32s]:
        """A tensor some rows after the others; of the file, only these are in memory."""
        sources = self._sources[name]
        if len(sources) > 1 or name in self._report.reorders:
            yield self[name]
            return
        for start in range(0, len(self._view(sources[0])), rows):
            yield self._read(sources[0], slice(start, start + rows))

    def check(self, dtype: str) -> None:
        """Read everything once, heads and output layers included, as a load in ``dtype`` would.

        Raises:
            CorruptCheckpoint: a file is damaged, or holds a number that is not finite in ``dtype``.
            TensorMismatch: a second copy of a tensor differs from it.
        """
        for name in (name for sources in self._sources.values() for name in sources):
            if self._stored[name].rows is not None:
                if not rounds_to_finite(self._read(name), dtype):
                    raise not_finite_in(name, dtype)
                continue
            size = self._view(name).size
            # A view for each part, so that pages of earlier parts are given back.
            parts = (
                self._view(name).reshape(-1)[start : start + AT_ONCE] for start in range(0, size, AT_ONCE)
            )
            if not all(rounds_to_finite(part, dtype) for part in parts):
                raise not_finite_in(name, dtype)
            if self._stored[name].update is not None and not rounds_to_finite(self._read(name), dtype):
                raise not_finite_in(name, dtype)
        for name, ours in self._report.copies.items():
            if not np.array_equal(self._read(name), self[ours]):
                raise differs_from_copy(name, self._report.sources[ours][0])

    def _read(self, name: str, rows: slice = slice(None)) -> Float32s:
        """Rows of a stored tensor, with its update."""
        update, stored_rows = self._stored[name].update, self._stored[name].rows
        if stored_rows is not None:
            return self._gathered(name, stored_rows, rows)
        part = _float32(self._view(name)[rows])
        if update is None:
            return part
        left_NR = _float32(self._view_of(update.left, name)[update.index, rows])
        right_RK = _float32(self._view_of(update.right, name)[update.index])
        updated: Float32s = part + np.float32(update.scale) * (left_NR @ right_RK)
        return updated

    def _gathered(self, name: str, stored_rows: RowsOf, rows: slice) -> Float32s:
        """Rows of a matrix whose rows are stored once for several, or with a factor for each."""
        table_ND = self._view_of(stored_rows.table, name)
        numbers_N: NDArray[Any] = np.arange(self._stored[name].shape[0])[rows]
        if stored_rows.mapping is not None:
            numbers_N = self._view_of(stored_rows.mapping, MAPPING)[rows]
            outside = numbers_N[(numbers_N < 0) | (numbers_N >= len(table_ND))]
            if len(outside):
                raise CorruptCheckpoint(
                    f"the tensor {MAPPING} in {stored_rows.mapping.file} names row {outside[0]}, and {name} "
                    f"has {len(table_ND)} rows"
                )
        part_ND = _float32(table_ND[numbers_N])
        if stored_rows.weights is None:
            return part_ND
        weights_N = _float32(self._view_of(stored_rows.weights, ROW_WEIGHTS)[rows])
        weighted: Float32s = part_ND * weights_N[:, None]
        return weighted

    def _view(self, name: str) -> NDArray[Any]:
        """A stored tensor as a view of its file."""
        return self._view_of(self._stored[name], name)

    def _view_of(self, stored: StoredTensor, name: str) -> NDArray[Any]:
        if stored.file not in self._files:
            self._files[stored.file] = _MappedFile(stored.file)
        return self._files[stored.file].view(stored, stored.key or name)


class _MappedFile:
    """A safetensors file in memory: eight bytes with the size of a JSON header, the header, and the numbers.

    Its header was checked when the checkpoint was read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                self._header = json.loads(file.read(size))
                self._start = 8 + size
                self._stamp = _stamp(os.fstat(file.fileno()))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None

    def view(self, stored: StoredTensor, key: str) -> NDArray[Any]:
        """A tensor of the file; pages that were read for others are given back.

        Raises:
            CorruptCheckpoint: the file is damaged, or was written again in place.
        """
        with suppress(OSError):  # a file that was deleted or replaced stays as it was mapped
            found = _stamp(self._path.stat())
            if found != self._stamp and found[0] == self._stamp[0]:
                raise CorruptCheckpoint(f"{self._path} has changed since it was loaded; load the model again")
        forget_mapped(self._map)
        try:
            first, end = self._header[key]["data_offsets"]
            dtype = np.dtype(STORED[stored.dtype])
            count, start = (end - first) // dtype.itemsize, self._start + first
            return np.frombuffer(self._map, dtype, count, start).reshape(stored.shape)
        except (KeyError, ValueError) as error:
            raise damaged(self._path, error) from None


def _stamp(status: os.stat_result) -> tuple[tuple[int, int], int, int]:
    """Which file it is, when it was written, and its size."""
    return (status.st_dev, status.st_ino), status.st_mtime_ns, status.st_size


def _float32(values: NDArray[Any]) -> Float32s:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def rounds_to_finite(values: NDArray[Any], dtype: str) -> bool:
    """Whether all numbers, as they are stored, are finite in float32 or bfloat16; NaN is not."""
    beyond = BEYOND[dtype]
    numbers = _float32(values) if values.dtype == np.uint16 else values
    return -beyond < float(numbers.min()) <= float(numbers.max()) < beyond


def read_arrays(stored: Mapping[str, StoredTensor]) -> dict[str, NDArray[Any]]:
    """Tensors by name as arrays of floating-point numbers: float32 of bfloat16, others as they are stored.

    Raises:
        CorruptCheckpoint: a file cannot be read.
    """
    files = {path: _MappedFile(path) for path in {tensor.file for tensor in stored.values()}}
    views = {name: files[tensor.file].view(tensor, tensor.key or name) for name, tensor in stored.items()}
    return {name: _float32(view) if view.dtype == np.uint16 else view for name, view in views.items()}
