"""Export the trained model as a checkpoint folder."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import unmask
from unmask.base.files import read_bytes, remove_leftover, replaced_folder
from unmask.errors import InvalidRequest, OutputError
from unmask.training.objectives.interface import Objective
from unmask.training.run.distributed import is_sharded, unsharded
from unmask.training.run.loop import Loop
from unmask.training.run.settings import ExportDtype
from unmask.weights import Checkpoint
from unmask.weights.build import DTYPES
from unmask.weights.write.save import check_written, save, written_as

RECORD = "training.json"
"""Record of the run that the model is from, and of its training progress."""


def write_model(loop: Loop, checkpoint: Checkpoint, folder: Path, *, shard_bytes: int | None = None) -> None:
    """Write the encoders as checkpoint folders, with averaged weights if the run keeps them.

    If weights are sharded, all processes must call it, and `export` too.
    """
    with _whole_weights(loop, None) if is_sharded(loop.objective) else _averaged(loop):
        if loop.ranks.first:
            _write(loop, checkpoint, folder, shard_bytes)


class ExportSettings(Protocol):
    """What the settings of a run say of its export; see `RunSettings`."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def card(self) -> str | None:
        """The file of its card."""

    @property
    def export_dtype(self) -> ExportDtype | None:
        """Its dtype."""

    @property
    def export_shard_bytes(self) -> int | None:
        """Maximum bytes of a file of weights."""


def export(
    loop: Loop,
    settings: ExportSettings,
    checkpoint: Checkpoint,
    folder: Path,
    *,
    base: Path,
    held_out: Mapping[str, float],
    written_card: str | None = None,
) -> None:
    """Export the model of a finished run atomically, unless it has been exported already.

    Args:
        loop: at its last step.
        settings: settings of the run.
        checkpoint: the checkpoint to save.
        folder: destination of the model; an earlier export of the same run is replaced.
        base: the folder that the card's path is relative to.
        held_out: final figures on held-out text, for the record.
        written_card: the text of the card if the settings name none; None for no card.

    Raises:
        InvalidRequest: the card cannot be read.
        OutputError: the disk is full or read-only.
    """
    with shipped_weights(loop, settings.export_dtype):
        if loop.ranks.first:
            card = card_of(settings, base, written_card)
            _put(loop, settings, checkpoint, folder, card=card, held_out=held_out)


def _put(
    loop: Loop,
    settings: ExportSettings,
    checkpoint: Checkpoint,
    folder: Path,
    *,
    card: bytes | None,
    held_out: Mapping[str, float],
) -> None:
    """`export`, while the objective holds the exported weights."""
    record = {
        "run": settings.name,
        "steps": loop.step,
        "tokens": loop.tokens,
        "export_dtype": settings.export_dtype,
        "held_out": dict(held_out),
        "unmask": unmask.__version__,
        "sha256": _digest(loop, card, settings.export_shard_bytes),
    }
    if _record(folder) == record:
        remove_leftover(folder)
        return
    check_place(folder, settings.name)
    with replaced_folder(folder) as partial:
        _write(loop, checkpoint, partial, settings.export_shard_bytes)
        if card is not None:
            (partial / "README.md").write_bytes(card)
        (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8", newline="\n")


def _digest(loop: Loop, card: bytes | None, shard_bytes: int | None) -> str:
    """A SHA-256 of what is exported: a run from other data may have the same name, steps and figures."""
    digest = hashlib.sha256(repr((card, shard_bytes)).encode())
    objective = loop.objective
    parts = [(part, encoder.state_dict()) for part, encoder in sorted(objective.encoders().items())]
    for part, tensors in (*parts, *([("beside", objective.beside())] if objective.beside() else [])):
        for name, tensor in sorted(tensors.items()):
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            digest.update(f"{part}.{name}".encode() + hashlib.sha256(numbers).digest())
    return digest.hexdigest()


def card_of(settings: ExportSettings, base: Path, written: str | None) -> bytes | None:
    """The card to export: the file that the settings name, else the written text."""
    if settings.card is not None:
        return read_card(settings.card, base)
    return None if written is None else written.encode()


def check_encoders(objective: Objective[Any, Any], checkpoint: Checkpoint) -> None:
    """Refuse before training an encoder that could not be saved after it.

    An additional encoder, such as a generator, is saved in unmask's own format if its family has none for it,
    see `written_as`.

    Raises:
        InvalidRequest: the family cannot write the exported encoder.
    """
    for name, encoder in objective.encoders().items():
        shape = written_as(checkpoint, encoder.spec) if name else checkpoint
        check_written(shape.family, encoder.spec, shape.config)


def check_place(folder: Path, name: str) -> None:
    """Refuse to overwrite anything but an earlier export of the same run.

    Raises:
        OutputError: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and _record(folder).get("run") != name:
        raise OutputError(
            f"{folder}, the destination of the run's model, holds something else; move that away, or name "
            "another folder with out"
        )


def read_card(card: str, base: Path) -> bytes:
    """Read the model card that is exported with the model.

    Raises:
        InvalidRequest: the card cannot be read.
    """
    return read_bytes(base / card, lambda why: InvalidRequest(f"{why}, which card names"))


@contextmanager
def shipped_weights(loop: Loop, dtype: ExportDtype | None) -> Iterator[None]:
    """Context in which the objective holds the exported weights, in the export dtype.

    These are averages if the run keeps them; otherwise, for a float32 export of bfloat16 weights, the float32
    masters. Afterwards its own weights are restored bit for bit.
    """
    objective = loop.objective
    if dtype is None or is_sharded(objective):
        with _whole_weights(loop, dtype) if is_sharded(objective) else _averaged(loop):
            yield
        return
    originals = {name: tensor.detach().clone() for name, tensor in _tensors(loop)}
    values = _values(loop)
    try:
        objective.to(DTYPES[dtype])
        _assign(loop, values)
        yield
    finally:
        # The optimizer identifies parameters by object, so they stay the same objects.
        for name, parameter in objective.named_parameters():
            parameter.data = originals[name]
        for name, _ in list(objective.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            setattr(objective.get_submodule(owner), leaf, originals[name])


def _averaged(loop: Loop) -> AbstractContextManager[None]:
    return loop.averages.swap() if loop.averages else nullcontext()


def _whole_weights(loop: Loop, dtype: ExportDtype | None) -> AbstractContextManager[None]:
    """`shipped_weights` of a sharded objective."""
    values = _values(loop) if loop.averages or dtype else {}
    return unsharded(loop.objective, loop.ranks, values, None if dtype is None else DTYPES[dtype])


def _values(loop: Loop) -> dict[str, Tensor]:
    if loop.averages is not None:
        return dict(loop.averages.averages)
    state = loop.optimizer.state
    return {
        name: state[parameter]["master"]
        for name, parameter in loop.objective.named_parameters()
        if "master" in state.get(parameter, {})
    }


@torch.no_grad()
def _assign(loop: Loop, values: Mapping[str, Tensor]) -> None:
    for name, tensor in _tensors(loop):
        if name in values:
            tensor.copy_(values[name])


def _tensors(loop: Loop) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(loop.objective.named_parameters(), loop.objective.named_buffers())


def _write(loop: Loop, checkpoint: Checkpoint, folder: Path, shard_bytes: int | None) -> None:
    for name, encoder in loop.objective.encoders().items():
        shape = written_as(checkpoint, encoder.spec) if name else checkpoint
        place, labels = (folder / name, None) if name else (folder, loop.objective.beside())
        save(encoder, shape, place, shard_bytes=shard_bytes, labels=labels)


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
