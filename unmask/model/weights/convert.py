"""A safe copy of a checkpoint whose weights are pickled."""

import pickle
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import CheckpointNotFound, CorruptCheckpoint, OutputError, UnsafeCheckpoint
from unmask.files import read_bytes, whole_folder
from unmask.model.weights.build import claims
from unmask.model.weights.checkpoint import read_checkpoint
from unmask.model.weights.embedding_head import EMBEDDING_FILES
from unmask.model.weights.source import Source
from unmask.model.weights.tensors import PICKLED, WEIGHTS, shards
from unmask.text.tokenizer import TOKENIZER_FILES

COPIED = ("config.json", *TOKENIZER_FILES, *EMBEDDING_FILES, "1_Pooling/config.json")


def convert_pickled(folder: Path, out: Path) -> None:
    """Write ``out`` with the weights of ``folder`` as safetensors and its other files unchanged.

    The pickle is opened with ``weights_only``, which refuses anything but tensors and plain
    containers, so no code in it can run. The copy is checked to be a checkpoint before it appears.

    Raises:
        UnsafeCheckpoint: the pickle holds something other than tensors.
        CheckpointError: there are no pickled weights, or the copy is no checkpoint.
        OutputError: ``out`` exists and is not empty, or cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for path in _pickles(folder):
        tensors |= _tensors_of(path)
    with whole_folder(out) as partial:
        for name in COPIED:
            if (folder / name).is_file():
                (partial / name).parent.mkdir(exist_ok=True)
                (partial / name).write_bytes(read_bytes(folder / name, CorruptCheckpoint))
        # safetensors stores no two names for one memory, so each tensor gets its own.
        own = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
        try:
            save_file(own, partial / WEIGHTS, metadata={"format": "pt"})
        except Exception as error:  # the package has an error class of its own for full disks
            raise OutputError(f"cannot write {out / WEIGHTS}: {error}") from None
        claims(read_checkpoint(Source(partial, out.name)))


def _pickles(folder: Path) -> list[Path]:
    single, index = (folder / name for name in PICKLED)
    if single.is_file():
        return [single]
    if index.is_file():
        return shards(index)
    raise CheckpointNotFound(f"{folder} holds no {PICKLED[0]} to convert")


def _tensors_of(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise UnsafeCheckpoint(f"{path} holds more than tensors, so it is not opened: {reason}") from None
    except (OSError, RuntimeError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCheckpoint(f"{path} is damaged or incomplete: {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UnsafeCheckpoint(f"{path} holds something other than named tensors")
    return state
