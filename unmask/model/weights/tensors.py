"""The tensors of a checkpoint folder: their names, shapes and files, read without loading them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from unmask.errors import CheckpointNotFound, CorruptCheckpoint, UnsafeCheckpoint
from unmask.files import read_bytes
from unmask.settings import Settings

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """As the file writes it: F32, BF16, I64 ..."""


def stored_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of the folder's safetensors files, by name.

    Raises:
        UnsafeCheckpoint: there are only pickled weights.
        CheckpointNotFound: there are no weights.
        CorruptCheckpoint: a file is damaged, or a shard that the index names is not there.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - an open file is no dict
                    part = file.get_slice(name)
                    tensors[name] = StoredTensor(path, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise CorruptCheckpoint(
                f"{path} is damaged or incomplete ({error}); copy or download it again"
            ) from None
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        return shards(folder / INDEX)
    if any((folder / name).exists() for name in PICKLED):
        raise UnsafeCheckpoint(
            f"{folder} holds only pickled weights, which can run code when opened; "
            f"make a safe copy with: unmask convert {folder} NEW_FOLDER"
        )
    raise CheckpointNotFound(f"{folder} holds no {WEIGHTS}")


def shards(index: Path) -> list[Path]:
    """The weight files that an index names, each once.

    Raises:
        CorruptCheckpoint: it is no index, or names a file that is not beside it.
    """
    places: dict[str, object] = Settings.parse(read_bytes(index, CorruptCheckpoint), index.name).take(
        "weight_map", {}
    )
    names = list(dict.fromkeys(name for name in places.values() if isinstance(name, str)))
    if not names:
        raise CorruptCheckpoint(f"{index} is no index of weight files")
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise CorruptCheckpoint(f"{index} names {name}, which is not in the folder")
    return [index.parent / name for name in names]
