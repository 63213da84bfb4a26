"""Write a static model, as the library that its checkpoint is of stores it. Free of torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from unmask.base.arguments import check_choice
from unmask.base.checksums import write_checksums
from unmask.base.files import whole_folder
from unmask.errors import OutputError
from unmask.families.static import TABLE
from unmask.spec import PooledVector
from unmask.weights.heads.embedding_head import write_output
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import StoredArrays, not_finite_in
from unmask.weights.tensors import WEIGHTS

DTYPES = ("float32", "float16")
"""The types in which a table is written."""


def save_static(checkpoint: Checkpoint, folder: Path, dtype: str = "float32") -> None:
    """Write a static model as it was read: a row for each token, its tokenizer and its output.

    Args:
        checkpoint: of an encoder without layers.
        folder: the folder, which appears complete or not at all.
        dtype: of the table, one of `DTYPES`.

    Raises:
        InvalidRequest: another dtype.
        CorruptCheckpoint: a number of the table is not finite in ``dtype``.
        OutputError: the folder exists and is not empty, or cannot be written.
    """
    check_choice("dtype", dtype, DTYPES)
    arrays = StoredArrays(checkpoint)
    arrays.check("float32")
    table_VD = arrays["embedding.words.weight"]
    ((name, _),) = checkpoint.tensors.items()
    with np.errstate(over="ignore"):
        rounded_VD = table_VD.astype(dtype)
    if not np.isfinite(rounded_VD).all():
        raise not_finite_in(name, dtype)
    head = checkpoint.head
    files = {**checkpoint.sentence_files}
    files |= write_output(head, checkpoint.spec, checkpoint.max_tokens, checkpoint.sentence_files)
    if name == TABLE:
        normalize = isinstance(head, PooledVector) and head.normalize
        config = {**checkpoint.config, "normalize": normalize}
        files["config.json"] = static_config(config, checkpoint.family.write(checkpoint.spec), dtype)
    if checkpoint.stored_tokenizer is not None:
        files |= checkpoint.stored_tokenizer.files
    tensors = {"": {name: rounded_VD}, **_of_layers(checkpoint, arrays, files)}
    write_static(folder, files, tensors)


def static_config(config: Mapping[str, Any], written: Mapping[str, Any], dtype: str) -> bytes:
    """The config.json of a table with a row for each token.

    Args:
        config: keys that are kept.
        written: the keys that the family writes.
        dtype: of the table.
    """
    others = {key: value for key, value in config.items() if key != "vocabulary_quantization"}
    return to_json(dict(sorted({**others, **written, "embedding_dtype": dtype}.items())))


def write_static(
    folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, Mapping[str, NDArray[Any]]]
) -> None:
    """Write files, and the tensors of each folder inside, ``""`` for that of the table."""
    with whole_folder(folder) as partial:
        for name, content in sorted(files.items()):
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            for inside, arrays in tensors.items():
                contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
                save_file(contiguous, partial / inside / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"cannot write {folder / WEIGHTS}: {error}") from None
        write_checksums(partial)


def _of_layers(
    checkpoint: Checkpoint, arrays: StoredArrays, files: Mapping[str, bytes]
) -> dict[str, dict[str, NDArray[np.float32]]]:
    """The tensors of the output's layers by the folders that ``files`` give them, in order."""
    layers: dict[str, dict[str, NDArray[np.float32]]] = {}
    for ours in checkpoint.output_tensors:
        _, number, name = ours.split(".", 2)
        layers.setdefault(number, {})[name] = arrays[ours]
    ends = ("_Dense/config.json", "_LayerNorm/config.json")
    folders = [name.partition("/")[0] for name in files if name.endswith(ends)]
    return dict(zip(folders, layers.values(), strict=True))
