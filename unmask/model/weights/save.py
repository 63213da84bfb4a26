"""Write a Hugging Face checkpoint folder that `transformers` and `sentence-transformers` load."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import OutputError
from unmask.files import whole_folder
from unmask.model.encoder import Encoder
from unmask.model.families import Family
from unmask.model.spec import EmbeddingHead
from unmask.model.weights.checkpoint import Checkpoint
from unmask.model.weights.claims import moves
from unmask.model.weights.embedding_head import to_json, write_head
from unmask.model.weights.tensors import WEIGHTS


def their_tensors(encoder: Encoder, family: Family) -> dict[str, Tensor]:
    """The encoder's tensors under the family's names, stacked ones taken apart."""
    state = encoder.state_dict()
    tensors: dict[str, Tensor] = {}
    for move in moves(family.rows, state, partial(family.layer_name, encoder.spec)):
        parts = state[move.ours].chunk(len(move.theirs))
        # Their classes keep the encoder under the model's name, beside the heads.
        prefix = family.prefix if encoder.spec.heads and not move.ours.startswith("heads.") else ""
        tensors |= {prefix + name: part.contiguous() for name, part in zip(move.theirs, parts, strict=True)}
    return tensors


def save(encoder: Encoder, checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write the encoder with its tokenizer and embedding head; the folder appears whole or not at all.

    The same encoder always gives the same bytes. Tokenizer files are written as they were read.
    Keys of config.json that do not describe the encoder are kept from the checkpoint.

    Raises:
        OutputError: the folder exists and is not empty, or the disk is full or read-only.
    """
    family = checkpoint.family
    config: Mapping[str, Any] = {**checkpoint.config, **family.write(encoder.spec)}
    dtype = str(encoder.embedding.words.weight.dtype).removeprefix("torch.")
    config = {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype")}
    files = {
        "config.json": to_json(dict(sorted({**config, "dtype": dtype}.items()))),
        **checkpoint.tokenizer.files,
        **checkpoint.sentence_files,
    }
    if isinstance(checkpoint.head, EmbeddingHead):
        files |= write_head(checkpoint.head, encoder.spec.width, checkpoint.max_tokens)
    tensors = their_tensors(encoder, family)
    with whole_folder(Path(folder)) as partial:
        for name, content in sorted(files.items()):
            path = partial / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        try:
            save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"cannot write {Path(folder) / WEIGHTS}: {error}") from None
