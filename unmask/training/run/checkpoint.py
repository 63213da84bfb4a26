"""Everything a run needs to resume, in its own folder whose checksummed manifest is written last.

A checkpoint is valid once its manifest exists, and the manifest is written after every other byte has reached
the disk. Older checkpoints are removed only after that. Later disk corruption is detected when a run resumes:
checksums are compared, and a checkpoint that differs from what was written is skipped in favor of an older
one.

If weights are sharded, each process writes its shards into its own file in the checkpoint's folder ``shards``
(`torch.distributed.checkpoint`, in the safetensors format, so that no file of a run can carry code), and any
number of processes can load them. The rest is as with one process: the first process writes it.
"""

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.base.files import settle, unwritable, whole_file
from unmask.base.system import sync
from unmask.errors import CorruptCheckpoint, OutputError
from unmask.training.optim.updates import distribute_like, is_dtensor
from unmask.training.run.loop import Loop
from unmask.training.run.ranks import Ranks, first_line

MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
SHARDS = "shards"
"""Folder of tensors that were sharded over processes, see `unmask.training.run.checkpoint`."""


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
        (place / STATE).write_text(
            json.dumps({"step": snapshot.step, **snapshot.state}), encoding="utf-8", newline="\n"
        )
        if also is not None:
            also(place)
        settle(place)
        files = {path.relative_to(place).as_posix(): _digest(path) for path in _files(place)}
        with whole_file(place / MANIFEST) as partial:
            diverged = bool(snapshot.state.get("diverged"))
            about = {"step": snapshot.step, "diverged": diverged, "sha256": files}
            partial.write_text(json.dumps(about, indent=1), encoding="utf-8", newline="\n")
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
    folders = [(path.name.removeprefix("step-"), path) for path in folder.glob("step-*")]
    return sorted(
        (int(step), path) for step, path in folders if step.isdecimal() and (path / MANIFEST).is_file()
    )


def verify(place: Path) -> None:
    """Raise if a file of the checkpoint is missing or has changed since it was written.

    Raises:
        CorruptCheckpoint: a file is missing or changed; the message names it.
    """
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        checksums = manifest["sha256"]
        if STATE not in checksums:
            raise CorruptCheckpoint(f"{place} is damaged: its {MANIFEST} does not name {STATE}")
        for name, digest in checksums.items():
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
        state = json.loads((place / STATE).read_text(encoding="utf-8"))
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
        return bool(json.loads((place / MANIFEST).read_text(encoding="utf-8")).get("diverged"))
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


def save_sharded(snapshot: Snapshot, folder: Path, ranks: Ranks, also: Callable[[Path], None]) -> Path:
    """Like `save_snapshot`, but called by all processes together.

    Args:
        snapshot: with the shards of this process.
        folder: the folder of all checkpoints, visible to all processes.
        ranks: the processes of the run.
        also: writes further files into the new folder; called by all processes.

    Raises:
        OutputError: the disk is full or read-only. Older checkpoints stay as they were.
    """
    shares = {name: tensor for name, tensor in snapshot.tensors.items() if is_dtensor(tensor)}
    rest = {name: tensor for name, tensor in snapshot.tensors.items() if name not in shares}
    place = place_of(snapshot.step, folder)

    def together(new: Path) -> None:
        ranks.wait()  # until the folder exists
        with _failing(lambda why: OutputError(f"cannot write {new / SHARDS}: {why}")):
            _write(shares, new / SHARDS)
        also(new)

    if ranks.first:
        save_snapshot(replace(snapshot, tensors=rest), folder, also=together)
    else:
        together(place)
    ranks.wait()  # until the manifest exists
    return place


def newest_for_all(folder: Path, ranks: Ranks, say: Callable[[str], None]) -> Snapshot | None:
    """Like `newest`; the first process chooses and verifies the checkpoint, and all read it.

    Raises:
        CorruptCheckpoint: there are finished checkpoints and none of them verifies.
    """
    if ranks.world == 1:
        return newest(folder, say)
    snapshot = newest(folder, say) if ranks.first else None
    step = ranks.of_first(-1 if snapshot is None else snapshot.step)
    if ranks.first or step < 0:
        return snapshot
    return load_snapshot(place_of(step, folder), check=False)


def placed(snapshot: Snapshot, loop: Loop) -> Snapshot:
    """The snapshot with its tensors as the loop's are: complete, or this process's shards.

    Only the needed parts of shards on disk are read. Tensors that the loop does not have stay complete.

    Raises:
        CorruptCheckpoint: a tensor's shape differs from the loop's, or it cannot be read.
    """
    here = _held(loop)
    if snapshot.shards is None and not any(map(is_dtensor, here.values())):
        return snapshot
    tensors = {
        name: distribute_like(tensor, here[name]) if name in here and is_dtensor(here[name]) else tensor
        for name, tensor in snapshot.tensors.items()
    }
    if snapshot.shards is not None:
        tensors |= _read(snapshot.shards, here)
    return replace(snapshot, tensors=tensors, shards=None)


def _held(loop: Loop) -> dict[str, Tensor]:
    """The loop's tensor for each name in a snapshot; for optimizer moments, their parameter."""
    tensors = {f"objective.{name}": value for name, value in loop.objective.state_dict().items()}
    if loop.averages is not None:
        tensors |= {f"averages.{name}": average for name, average in loop.averages.averages.items()}
    numbered = [parameter for group in loop.optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(numbered):
        kinds = ("first", "second", "momentum", "master")
        tensors |= {f"optimizer.{number}.{kind}": parameter.detach() for kind in kinds}
    return tensors


def _write(shares: Mapping[str, Tensor], folder: Path) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(dict(shares), storage_writer=writer)


def _read(folder: Path, here: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    with _failing(lambda why: CorruptCheckpoint(f"{folder} cannot be read: {why}")):
        reader = HuggingFaceStorageReader(str(folder))
        tensors: dict[str, Tensor] = {}
        for name, stored in reader.read_metadata().state_dict_metadata.items():
            assert isinstance(stored, TensorStorageMetadata)
            like = here.get(name)
            if like is None or like.shape != stored.size:
                # Complete, so that the consumer of the tensor reports what is wrong with it.
                tensors[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
            else:
                tensors[name] = torch.empty_like(like, dtype=stored.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each reads alone
            load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _failing(error: Callable[[str], Exception]) -> Iterator[None]:
    """Report errors of torch's checkpoints in one sentence; some of them collect the errors of all
    processes."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as fault:
        first = next((rank for rank, _ in fault.failures.values()), fault)
        raise error(first_line(first)) from None
    except (OSError, RuntimeError, ValueError, KeyError) as fault:
        raise error(first_line(fault)) from None
