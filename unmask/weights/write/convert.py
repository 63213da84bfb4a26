"""Make a safe copy of a checkpoint whose weights are pickled."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unmask.base.checksums import write_checksums
from unmask.base.files import read_regular, whole_folder
from unmask.encoder.encoder import is_finite
from unmask.errors import CheckpointNotFound, CorruptCheckpoint, OutputError, UnsafeCheckpoint
from unmask.text.tokenizer import TOKENIZER_FILES
from unmask.weights.heads.embedding_head import EMBEDDING_FILES, pickled_token_layers
from unmask.weights.heads.label_files import LABEL_CONFIG
from unmask.weights.heads.multi_vector_files import STANFORD_METADATA
from unmask.weights.heads.sentence_modules import modules_of
from unmask.weights.read.checkpoint import read_checkpoint
from unmask.weights.read.checkpoint_tensors import report_tensors
from unmask.weights.read.find import Source
from unmask.weights.tensors import PICKLED, WEIGHTS, check_stored_file, read_index

COPIED = (
    "config.json",
    LABEL_CONFIG,
    *TOKENIZER_FILES,
    *EMBEDDING_FILES,
    "1_Pooling/config.json",
    STANFORD_METADATA,
)


def convert_pickled(folder: Path, out: Path) -> None:
    """Write ``out`` with the weights of ``folder`` as safetensors and its other files unchanged.

    The pickle is opened with ``weights_only``, which refuses anything but tensors and plain
    containers, so no code in it can run. The copy is validated as a checkpoint before it appears.

    Raises:
        UnsafeCheckpoint: the pickle holds something other than tensors.
        CheckpointError: there are no pickled weights, or the copy is not a valid checkpoint.
        OutputError: ``out`` exists and is not empty, or cannot be written.
    """
    inside = [name for name in _module_folders(folder) if (folder / name / PICKLED[0]).exists()]
    pickles = {name: [folder / name / PICKLED[0]] for name in inside}
    layers = pickled_token_layers(folder)
    safe = bool(inside or layers) and (folder / WEIGHTS).exists()
    if not safe:
        pickles[""] = _pickles(folder)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, paths in pickles.items():
        tensors[name] = {key: tensor for path in paths for key, tensor in _tensors_of(path).items()}
    modules = [f"{name}/{file}" for name in _module_folders(folder) for file in ("config.json", WEIGHTS)]
    with whole_folder(out) as partial:
        for name in (*COPIED, *modules, *([WEIGHTS] if safe else [])):
            if (folder / name).exists():
                (partial / name).parent.mkdir(exist_ok=True)
                (partial / name).write_bytes(read_regular(folder / name, CorruptCheckpoint))
        try:
            for name, part_tensors in tensors.items():
                (partial / name).mkdir(exist_ok=True)
                save_file(_storable(part_tensors), partial / name / WEIGHTS, metadata={"format": "pt"})
            for path in layers:
                layer = _storable(_tensors_of(path))
                save_file(layer, partial / f"{path.stem}.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"cannot write {out / WEIGHTS}: {error}") from None
        write_checksums(partial)
        report_tensors(read_checkpoint(Source(partial, out.name)))


def _module_folders(folder: Path) -> list[str]:
    """The folders of the modules that modules.json names, besides the checkpoint's own."""
    listed = folder / EMBEDDING_FILES[0]
    if not listed.exists():
        return []
    return [module.path for module in modules_of(read_regular(listed, CorruptCheckpoint)) if module.path]


def _pickles(folder: Path) -> list[Path]:
    single, index = (folder / name for name in PICKLED)
    if single.exists():
        return [single]
    if index.exists():
        return sorted(set(read_index(index).values()))
    raise CheckpointNotFound(f"{folder} holds no {PICKLED[0]} to convert")


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor with separate memory, since safetensors cannot store two names for one tensor."""
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise CorruptCheckpoint(f"the tensor {name} is sparse, unlike in any published checkpoint")
        if not is_finite(tensor):
            raise CorruptCheckpoint(f"the tensor {name} holds a number that is not finite")
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _tensors_of(path: Path) -> dict[str, Tensor]:
    check_stored_file(path)
    damaged = CorruptCheckpoint(f"{path} is damaged or incomplete; copy or download it again")
    try:
        # The archive's own checksums, which torch does not check.
        if zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is not None:
            raise damaged
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch's message advises opening it anyway; only the name of the object it found is useful.
        met = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds more than tensors ({met[1]})" if met else "holds more than tensors, or is damaged"
        raise UnsafeCheckpoint(
            f"{path} {what}, so it is not opened; get the weights as safetensors"
        ) from None
    except CorruptCheckpoint:
        raise
    except Exception:  # damaged bytes can raise any exception in the unpickler
        raise damaged from None
    is_state = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not is_state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UnsafeCheckpoint(f"{path} holds something other than named tensors")
    return dict(state)
