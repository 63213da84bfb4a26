"""Everything a run needs to go on, in a folder of its own whose checksummed manifest is written last.

A checkpoint counts from the moment its manifest is there, and the manifest comes after every other byte has
reached the disk. Older checkpoints are removed after that and never before. What happens to a disk later is
found out when a run goes on: checksums are compared, and a checkpoint that is not what was written is passed
over for an older one.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import CorruptCheckpoint, OutputError
from unmask.files import unwritable, whole_file

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
SHARDS = "shards"
"""Folder of tensors that were spread over processes, see `unmask.learn.pretrain.sharded`."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a run after a step."""

    step: int
    """Steps done."""
    tensors: Mapping[str, Tensor]
    """Weights, moments, averages; names say whose."""
    state: Mapping[str, Any]
    """Numbers and texts, as JSON holds them."""
    shards: Path | None = None
    """The folder of further tensors, which are still to be read."""


def save_snapshot(snapshot: Snapshot, folder: Path, *, also: Callable[[Path], None] | None = None) -> Path:
    """Write a snapshot into its own new folder below ``folder``; it counts once its manifest is there.

    Args:
        snapshot: what to write.
        folder: of all checkpoints of the run.
        also: writes further files into the new folder, which the manifest covers too.

    Raises:
        OutputError: the disk is full or read-only. Older checkpoints stay as they were.
    """
    place = place_of(snapshot.step, folder)
    try:
        _remove(place)  # the rest of one that was never finished, or is damaged
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
        _sync(place)
        _sync(folder)
    except (OSError, SafetensorError, OutputError) as error:
        _remove(place)
        if isinstance(error, OSError):
            raise unwritable(place, error) from None
        raise OutputError(f"cannot write {place}: {error}") from None
    return place


def place_of(step: int, folder: Path) -> Path:
    """Where the checkpoint of a step is, below the folder of all checkpoints."""
    return folder / f"step-{step:08d}"


def steps_of(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints below ``folder``, oldest first; whether they are whole is not looked at."""
    found = [(path.name.removeprefix("step-"), path) for path in folder.glob("step-*")]
    return sorted(
        (int(step), path) for step, path in found if step.isdecimal() and (path / MANIFEST).is_file()
    )


def verify(place: Path) -> None:
    """Refuse a checkpoint with a file missing or changed since it was written.

    Raises:
        CorruptCheckpoint: naming the file.
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
    """The snapshot of a folder, after `verify` unless another process has done so.

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
    """The newest checkpoint that verifies, or None where there is none; ``say`` hears of newer damaged ones.

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
            say(f"{error}; an older checkpoint is tried")
    if problem is not None:
        raise CorruptCheckpoint(
            f"none of the {len(finished)} checkpoints in {folder} is whole; "
            f"remove the folder to start anew (the oldest: {problem})"
        )
    return None


def prune(folder: Path, written: int, keep: int, milestones: tuple[int, ...] = ()) -> None:
    """Remove what is no longer needed, now that the checkpoint of step ``written`` is on the disk.

    It and the ``keep - 1`` before it stay, milestones, and the newest whose loss had not diverged. What was
    never finished goes, and so do checkpoints of later steps: the run would have resumed from them, had they
    been whole.
    """
    finished = [(step, path) for step, path in steps_of(folder) if step <= written]
    if written not in dict(finished):
        return
    kept = {path for _, path in finished[-keep:]} | {path for step, path in finished if step in milestones}
    kept |= {path for path in [newest_sound(folder, written)] if path is not None}
    for path in folder.glob("step-*"):
        if path not in kept:
            _remove(path)


def newest_sound(folder: Path, step: int) -> Path | None:
    """The newest finished checkpoint up to a step whose loss had not diverged; damage is not looked for."""
    finished = [path for number, path in steps_of(folder) if number <= step]
    return next((path for path in reversed(finished) if not _diverged(path)), None)


def _diverged(place: Path) -> bool:
    try:
        return bool(json.loads((place / MANIFEST).read_text()).get("diverged"))
    except (OSError, ValueError, AttributeError):
        return True  # it is damaged, and nothing is to be kept for it


def flattened(state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state dict of one level per parameter, and the rest of it, which JSON holds."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}{key}.{name}"] = value
            else:
                rest.setdefault(str(key), {})[name] = value
    return tensors, rest


def settle(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in [folder, *folder.rglob("*")]:
        _sync(path)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor with memory of its own, as the file format wants it; shared ones are written twice."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        one = tensor.detach().contiguous()
        place = one.untyped_storage().data_ptr()
        apart[name] = one.clone() if place and place in seen else one
        seen.add(place)
    return apart


def _remove(place: Path) -> None:
    """The manifest goes first, so that a kill in between leaves no half checkpoint that looks whole."""
    with contextlib.suppress(OSError):
        (place / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and path.name != MANIFEST)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
