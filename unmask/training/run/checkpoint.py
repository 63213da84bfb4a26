"""Everything a run needs to resume, in its own folder whose checksummed manifest is written last.

A checkpoint is valid once its manifest exists, and the manifest is written after every other byte has reached
the disk. Older checkpoints are removed only after that. Later disk corruption is detected when a run resumes:
checksums are compared, and a checkpoint that differs from what was written is skipped in favor of an older
one.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.base.files import settle, sync, unwritable, whole_file
from unmask.errors import CorruptCheckpoint, OutputError

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
SHARDS = "shards"
"""Folder of tensors that were sharded over processes, see `unmask.training.run.sharded`."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a run after a step."""

    step: int
    """Completed steps."""
    tensors: Mapping[str, Tensor]
    """Weights, moments and averages, with prefixed names."""
    state: Mapping[str, Any]
    """JSON values."""
    shards: Path | None = None
    """The folder of further tensors, which have not been read yet."""


def save_snapshot(snapshot: Snapshot, folder: Path, *, also: Callable[[Path], None] | None = None) -> Path:
    """Write a snapshot into a new folder below ``folder``; it is valid once its manifest exists.

    Args:
        snapshot: the snapshot to write.
        folder: the folder of all checkpoints of the run.
        also: writes further files into the new folder, which the manifest also covers.

    Raises:
        OutputError: the disk is full or read-only. Older checkpoints stay as they were.
    """
    place = place_of(snapshot.step, folder)
    try:
        _remove(place)  # an unfinished or damaged checkpoint
        place.mkdir(parents=True)
        save_file(_apart(snapshot.tensors), place / TENSORS)
        (place / STATE).write_text(json.dumps({"step": snapshot.step, **snapshot.state}))
        if also is not None:
            also(place)
        settle(place)
        files = {path.relative_to(place).as_posix(): _digest(path) for path in _files(place)}
        with whole_file(place / MANIFEST) as partial:
            diverged = bool(snapshot.state.get("diverged"))
            about = {"step": snapshot.step, "diverged": diverged, "sha256": files}
            partial.write_text(json.dumps(about, indent=1))
        sync(place)
        sync(folder)
    except (OSError, SafetensorError, OutputError) as error:
        _remove(place)
        if isinstance(error, OSError):
            raise unwritable(place, error) from None
        raise OutputError(f"cannot write {place}: {error}") from None
    return place


def place_of(step: int, folder: Path) -> Path:
    """The folder of a step's checkpoint, below the folder of all checkpoints."""
    return folder / f"step-{step:08d}"


def steps_of(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints below ``folder``, oldest first; they are not verified."""
    named = [(path.name.removeprefix("step-"), path) for path in folder.glob("step-*")]
    return sorted(
        (int(step), path) for step, path in named if step.isdecimal() and (path / MANIFEST).is_file()
    )


def verify(place: Path) -> None:
    """Raise if a file of the checkpoint is missing or has changed since it was written.

    Raises:
        CorruptCheckpoint: a file is missing or changed; the message names it.
    """
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        wanted = manifest["sha256"]
        if STATE not in wanted:
            raise CorruptCheckpoint(f"{place} is damaged: its {MANIFEST} does not name {STATE}")
        for name, digest in wanted.items():
            if _digest(place / name) != digest:
                raise CorruptCheckpoint(f"{place / name} is not what was written: its checksum differs")
    except OSError as error:
        raise CorruptCheckpoint(f"{place} is damaged: {error.strerror or error}: {error.filename}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptCheckpoint(f"{place} is damaged: its {MANIFEST} is not what was written") from None


def load_snapshot(place: Path, *, check: bool = True) -> Snapshot:
    """Load the snapshot in a folder, after `verify` unless another process has done so.

    Raises:
        CorruptCheckpoint: a file is missing or damaged.
    """
    if check:
        verify(place)
    try:
        state = json.loads((place / STATE).read_text())
        shards = place / SHARDS if (place / SHARDS).is_dir() else None
        return Snapshot(state.pop("step"), load_file(place / TENSORS), state, shards)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CorruptCheckpoint(f"{place} cannot be read: {error}") from None


def newest(folder: Path, say: Callable[[str], None]) -> Snapshot | None:
    """The newest checkpoint that verifies, or None if there is none; newer damaged ones are reported to
    ``say``.

    Raises:
        CorruptCheckpoint: there are finished checkpoints and none of them verifies.
    """
    finished = steps_of(folder)
    problem: CorruptCheckpoint | None = None
    for _, place in reversed(finished):
        try:
            return load_snapshot(place)
        except CorruptCheckpoint as error:
            problem = error
            say(f"{error}; trying an older checkpoint")
    if problem is not None:
        raise CorruptCheckpoint(
            f"none of the {len(finished)} checkpoints in {folder} is intact; "
            f"remove the folder to start again (the oldest: {problem})"
        )
    return None


def prune(folder: Path, written: int, keep: int, milestones: tuple[int, ...] = ()) -> None:
    """Remove checkpoints that are no longer needed, now that the checkpoint of step ``written`` is on disk.

    Kept are this checkpoint, the ``keep - 1`` before it, milestones, and the newest whose loss had not
    diverged. Unfinished checkpoints are removed, and so are checkpoints of later steps: the run would have
    resumed from them if they were intact.
    """
    finished = [(step, path) for step, path in steps_of(folder) if step <= written]
    if written not in dict(finished):
        return
    keeping = {path for _, path in finished[-keep:]} | {path for step, path in finished if step in milestones}
    keeping |= {path for path in [newest_sound(folder, written)] if path is not None}
    for path in folder.glob("step-*"):
        if path not in keeping:
            _remove(path)


def newest_sound(folder: Path, step: int) -> Path | None:
    """The newest finished checkpoint up to a step whose loss had not diverged; it is not verified."""
    finished = [path for number, path in steps_of(folder) if number <= step]
    return next((path for path in reversed(finished) if not _diverged(path)), None)


def _diverged(place: Path) -> bool:
    try:
        return bool(json.loads((place / MANIFEST).read_text()).get("diverged"))
    except (OSError, ValueError, AttributeError):
        return True  # a damaged checkpoint is not worth keeping


def flattened(state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a state dict with one level per parameter into its tensors and the rest, which is JSON."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}{key}.{name}"] = value
            else:
                rest.setdefault(str(key), {})[name] = value
    return tensors, rest


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each tensor its own memory, as the file format requires; shared tensors are written twice."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        copy = tensor.detach().contiguous()
        place = copy.untyped_storage().data_ptr()
        apart[name] = copy.clone() if place and place in seen else copy
        seen.add(place)
    return apart


def _remove(place: Path) -> None:
    """Remove the manifest first, so that a kill in between leaves no partial checkpoint that looks
    complete."""
    with contextlib.suppress(OSError):
        (place / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and path.name != MANIFEST)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
