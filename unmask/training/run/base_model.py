"""The checkpoint that a run starts from, and the weights that are taken from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.errors import CheckpointNotFound, InvalidRequest
from unmask.spec.encoder import require_layers
from unmask.training.run.checkpoint import MANIFEST
from unmask.weights import Checkpoint, Source, find, read_checkpoint

POSITIONS = "embedding.positions.weight"
GLOBALS = ".globals."
"""In the names of tensors of projections of global tokens, which are otherwise those of other tokens."""


class ModelWithBase(Protocol):
    """The settings of a model that starts from a checkpoint."""

    @property
    def start_from(self) -> str | None:
        """Its name."""

    @property
    def ignore_tensors(self) -> tuple[str, ...]:
        """Tensors of its files that are left out."""


class WithBase(Protocol):
    """The settings of a run that starts from a checkpoint."""

    @property
    def model(self) -> ModelWithBase:
        """Those of its model."""


def first_checkpoint(settings: WithBase, base: Path) -> Checkpoint:
    """The checkpoint that ``model.start_from`` names.

    Raises:
        CheckpointNotFound: there is none of that name.
        CheckpointError: it cannot be used.
        InvalidRequest: it is a static model.
    """
    model = settings.model
    assert model.start_from is not None
    checkpoint = read_checkpoint(source(model.start_from, base), ignore_tensors=model.ignore_tensors)
    require_layers(checkpoint.spec, "training")
    return checkpoint


def source(name: str, base: Path) -> Source:
    """A checkpoint that a run file names: a folder relative to the file, or a hub id.

    For a run's checkpoint, this is the model in it.

    Raises:
        CheckpointNotFound: there is no such folder relative to the run file.
    """
    folder = base / name
    if folder.is_dir():
        inner = folder / "model" if (folder / MANIFEST).is_file() else folder
        return Source(inner, folder.resolve().name)
    if Path(name).is_dir():
        raise CheckpointNotFound(
            f"{folder} is not a folder; paths in a run file are relative to the file's folder, "
            f"not to {Path.cwd()}"
        )
    return find(name)


def base_model_name(name: str, base: Path) -> str:
    """The name of a base model in a card; of a folder its own name, or that of its run."""
    folder = (base / name).resolve()
    if not folder.is_dir():
        return name
    return folder.parent.name if folder.name == "model" else folder.name


def load_shared_tensors(
    encoder: Encoder, stored: Mapping[str, Tensor], name: str
) -> tuple[list[str], list[str]]:
    """Load the tensors that an encoder shares with another, called ``name``.

    Returns:
        The names that only the encoder has, which keep their values, and those that only the other has.

    Raises:
        InvalidRequest: a tensor's shape differs.
    """
    present = encoder.state_dict()
    for tensor in sorted(present.keys() & stored.keys()):
        if present[tensor].shape != stored[tensor].shape:
            raise InvalidRequest(
                f"model.config gives {tensor} the shape {list(present[tensor].shape)}, and in {name} it has "
                f"{list(stored[tensor].shape)}; keep the sizes of the checkpoint"
            )
    encoder.load_state_dict({tensor: stored.get(tensor, value) for tensor, value in present.items()})
    return [tensor for tensor in present if tensor not in stored], [
        tensor for tensor in stored if tensor not in present
    ]


def with_repeated_positions(encoder: Encoder, other: Encoder, name: str) -> dict[str, Tensor]:
    """Tensors of an encoder, for one of the same sizes that reads longer texts.

    Args:
        encoder: the encoder that they are for.
        other: the encoder that they are of.
        name: its name in errors.

    Returns:
        The tensors of ``other``. The rows of its table of positions are repeated, without those before the
        first position, until there are as many as in ``encoder``. If only ``encoder`` has projections of
        global tokens, they are copies of those of other tokens.

    Raises:
        InvalidRequest: one of both has no table of positions, or it would not become longer.
    """
    stored = other.state_dict()
    tables = [made.spec.embedding.positions for made in (encoder, other)]
    ours, theirs = tables
    if ours is None or theirs is None or ours.offset != theirs.offset or ours.rows <= theirs.rows:
        rows = ["none" if table is None else f"{table.rows:,} rows" for table in tables]
        raise InvalidRequest(
            f"model.repeat_positions lengthens a table of position vectors; this run has {rows[0]} and "
            f"{name} {rows[1]}; raise max_position_embeddings in model.config, or leave it out"
        )
    first, repeated = stored[POSITIONS].split([theirs.offset, theirs.rows - theirs.offset])
    times = -(-(ours.rows - ours.offset) // len(repeated))
    copies = {
        tensor: stored[tensor.replace(GLOBALS, ".")]
        for tensor in encoder.state_dict()
        if GLOBALS in tensor and tensor not in stored
    }
    return {**stored, **copies, POSITIONS: torch.cat([first, *[repeated] * times])[: ours.rows]}
