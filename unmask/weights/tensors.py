"""The tensors of a checkpoint folder: names, shapes, files and the order of rows. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from unmask.base.files import check_regular, read_bytes, read_regular
from unmask.base.json_settings import JsonSettings
from unmask.errors import CheckpointNotFound, CorruptCheckpoint, UnsafeCheckpoint
from unmask.spec import EncoderSpec
from unmask.spec.tensor_map import Rearrangement, Stacked

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_MOST_BYTES = 1024
"""The maximum size of a pointer, by the Git LFS specification."""

PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class LowRank:
    """An update that is added to a stored matrix when it is read: ``scale * left[index] @ right[index]``."""

    left: "StoredTensor"
    """(tasks, N, R) for a matrix of N x K."""
    right: "StoredTensor"
    """(tasks, R, K)."""
    index: int
    scale: float


@dataclass(frozen=True)
class RowsOf:
    """How the N rows of a matrix are read from a stored table: row i is ``weights[i]`` times row
    ``mapping[i]`` (Model2Vec, whose tokens can share rows).
    """

    table: "StoredTensor"
    mapping: "StoredTensor | None"
    """(N,); None: row i is the stored row i."""
    weights: "StoredTensor | None"
    """(N,); None: 1."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """The type name in the file: F32, BF16, I64 ..."""
    key: str | None = None
    """Its name in the file, if it is known by another one."""
    update: LowRank | None = None
    """What is added to it."""
    rows: RowsOf | None = None
    """How its rows are read, if they are not those of the file."""


def stored_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of the folder's safetensors files, by name.

    Raises:
        UnsafeCheckpoint: there are only pickled weights.
        CheckpointNotFound: there are no weights.
        CorruptCheckpoint: a file is damaged, or a shard named by the index is missing.
    """
    files, promised = _weight_files(folder)
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for name, tensor in tensors_of_file(path).items():
            if name in tensors:
                raise CorruptCheckpoint(f"{path} and {tensors[name].file} both hold {name}")
            tensors[name] = tensor
    for name in promised - set(tensors):
        raise CorruptCheckpoint(f"{folder / INDEX} names the tensor {name}, which no file holds")
    return tensors


def tensors_of_file(path: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of one safetensors file, by name.

    Raises:
        CorruptCheckpoint: the file is damaged.
    """
    check_stored_file(path)
    tensors = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - an open file is not a dict
                part = file.get_slice(name)
                tensors[name] = StoredTensor(path, tuple(part.get_shape()), part.get_dtype())
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(
            f"{path} is damaged or incomplete ({error}); copy or download it again"
        ) from None
    return tensors


PARAMETRIZED = ".parametrizations.weight."
"""Within the names of a matrix that torch's parametrizations store in parts."""
ORIGINAL, LORA_A, LORA_B = (PARAMETRIZED + end for end in ("original", "0.lora_A", "0.lora_B"))

TaskUpdates = Mapping[str, tuple[StoredTensor, StoredTensor]]
"""The left and the right factors of the updates of a matrix, for all tasks, by its name."""


def without_updates(tensors: Mapping[str, StoredTensor]) -> tuple[Mapping[str, StoredTensor], TaskUpdates]:
    """Matrices that are stored with low-rank updates for several tasks, under their plain names, and these.

    Raises:
        CorruptCheckpoint: a matrix lacks a factor, or its factors do not fit.
    """
    if not any(PARAMETRIZED in name for name in tensors):
        return tensors, {}
    plain: dict[str, StoredTensor] = {}
    updates: dict[str, tuple[StoredTensor, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(ORIGINAL)
        if module == name:
            if not name.endswith((LORA_A, LORA_B)):
                plain[name] = tensor
            continue
        a, b = (tensors.get(module + end) for end in (LORA_A, LORA_B))
        # A table of vectors has its rows in A, a linear layer in B.
        left, right = (a, b) if "embeddings." in module else (b, a)
        if left is None or right is None or not _fits(tensor, left, right):
            raise CorruptCheckpoint(f"{name} in {tensor.file} has no two factors of an update that fit it")
        keys = [replace(left, key=_key_of(left, tensors)), replace(right, key=_key_of(right, tensors))]
        plain[module + ".weight"] = replace(tensor, key=name)
        updates[module + ".weight"] = (keys[0], keys[1])
    return plain, updates


MAPPING, ROW_WEIGHTS = "mapping", "weights"
"""The names of the vectors of `RowsOf` in files of Model2Vec."""


def with_rows(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The table of a static model, under its name, of which `RowsOf` describes the rows.

    Raises:
        CorruptCheckpoint: the mapping or the weights are no vector with one number for each token.
    """
    vectors = {name: tensors[name] for name in (MAPPING, ROW_WEIGHTS) if name in tensors}
    others = {name: tensor for name, tensor in tensors.items() if name not in vectors}
    if not vectors or len(others) != 1:
        return tensors
    ((name, table),) = others.items()
    mapping, weights = vectors.get(MAPPING), vectors.get(ROW_WEIGHTS)
    if mapping is not None and (len(mapping.shape) != 1 or mapping.dtype not in WHOLE_NUMBERS):
        raise CorruptCheckpoint(
            f"the tensor {MAPPING} in {mapping.file} has shape {mapping.shape} and type {mapping.dtype}; "
            f"it must be a vector of whole numbers, the row of {name} for each token"
        )
    count = table.shape[0] if mapping is None else mapping.shape[0]
    if weights is not None and weights.shape != (count,):
        raise CorruptCheckpoint(
            f"the tensor {ROW_WEIGHTS} in {weights.file} has shape {weights.shape} and there are {count} "
            "tokens; it must have one number for each"
        )
    return {name: replace(table, shape=(count, *table.shape[1:]), rows=RowsOf(table, mapping, weights))}


WHOLE_NUMBERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U64": "<u8", "U32": "<u4"}
WHOLE_NUMBERS |= {"U16": "<u2", "U8": "<u1"}
"""Types of stored whole numbers, as safetensors writes them and as numpy does."""


def _fits(whole: StoredTensor, left: StoredTensor, right: StoredTensor) -> bool:
    shapes = (left.shape, right.shape)
    if len(whole.shape) != 2 or any(len(shape) != 3 for shape in shapes):
        return False
    (tasks, rows, rank), (others, ranks, columns) = shapes
    return (rows, columns) == whole.shape and tasks == others and rank == ranks


def _key_of(tensor: StoredTensor, tensors: Mapping[str, StoredTensor]) -> str:
    return next(name for name, candidate in tensors.items() if candidate is tensor)


def check_stored_file(path: Path) -> None:
    """Refuse anything but a regular file, and Git LFS pointers."""
    check_regular(path, CorruptCheckpoint)
    if path.stat().st_size <= LFS_MOST_BYTES and read_bytes(path, CorruptCheckpoint).startswith(LFS_POINTER):
        raise CorruptCheckpoint(
            f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in that folder, "
            "or download the file"
        )


def _weight_files(folder: Path) -> tuple[list[Path], frozenset[str]]:
    """The files that hold the weights, and the tensors that an index says they hold."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS], frozenset()
    if (folder / INDEX).exists():
        places = read_index(folder / INDEX)
        return sorted(set(places.values())), frozenset(places)
    if only_pickled(folder):
        raise UnsafeCheckpoint(
            f"{folder} holds only pickled weights, which can run code when opened; "
            f"make a safe copy with: unmask convert {folder} NEW_FOLDER"
        )
    raise CheckpointNotFound(f"{folder} holds no {WEIGHTS}")


def only_pickled(folder: Path) -> bool:
    """Whether a folder has pickled weights and no others."""
    safe = any((folder / name).exists() for name in (WEIGHTS, INDEX))
    return not safe and any((folder / name).exists() for name in PICKLED)


def read_index(index: Path) -> Mapping[str, Path]:
    """Which weight file holds which tensor, by the tensor's name.

    Raises:
        CorruptCheckpoint: it is not an index, or names a file that is not in its folder.
    """
    content = read_regular(index, CorruptCheckpoint)
    places: dict[str, object] = JsonSettings.parse(content, index.name).get("weight_map", {})
    if not places:
        raise CorruptCheckpoint(f"{index} is not an index of weight files")
    files = {}
    for tensor, name in places.items():
        if not isinstance(name, str) or Path(name).name != name or not (index.parent / name).exists():
            raise CorruptCheckpoint(f"{index} names {name}, which is not in the folder")
        files[tensor] = index.parent / name
    return files


Array = TypeVar("Array", bound=Any)
"""A torch tensor or a numpy array."""


def in_our_order(tensor: Array, reorder: Rearrangement | None, spec: EncoderSpec) -> Array:
    """A tensor as a file holds it, with its numbers in our order; None changes nothing."""
    if reorder is None:
        return tensor
    if isinstance(reorder, Stacked):
        parts: Array = tensor.swapaxes(1, 2) if reorder.transposed else tensor
        rows: Array = parts.reshape(-1, *parts.shape[2:])
        return rows
    return _chosen(tensor, list(reorder.order(spec)))


def in_their_order(tensor: Array, reorder: Rearrangement | None, spec: EncoderSpec) -> Array:
    """The reverse of `in_our_order`."""
    if reorder is None:
        return tensor
    if isinstance(reorder, Stacked):
        parts: Array = tensor.reshape(reorder.parts(spec), -1, *tensor.shape[1:])
        stacked: Array = parts.swapaxes(1, 2) if reorder.transposed else parts
        return stacked
    order = reorder.order(spec)
    return _chosen(tensor, sorted(range(len(order)), key=order.__getitem__))


def _chosen(tensor: Array, order: list[int]) -> Array:
    """The blocks of rows in an order, of which each has the same number of rows."""
    reordered: Array = tensor.reshape(len(order), -1, *tensor.shape[1:])[order].reshape(tensor.shape)
    return reordered
