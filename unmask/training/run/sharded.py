"""Checkpoints of a run with sharded weights, which any number of processes can load.

Each process writes its shards into its own file in the checkpoint's folder ``shards``
(`torch.distributed.checkpoint`, in the safetensors format, so that no file of a run can carry code). The rest
is as with one process: the first process writes it, and the manifest over all files last.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import CorruptCheckpoint, OutputError
from unmask.training.optim.dtensor import distribute_like, is_dtensor
from unmask.training.run.checkpoint import SHARDS, Snapshot, load_snapshot, newest, place_of, save_snapshot
from unmask.training.run.launch import first_line
from unmask.training.run.loop import Loop
from unmask.training.run.ranks import Ranks


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
    held = {f"objective.{name}": value for name, value in loop.objective.state_dict().items()}
    if loop.averages is not None:
        held |= {f"averages.{name}": average for name, average in loop.averages.averages.items()}
    numbered = [parameter for group in loop.optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(numbered):
        kinds = ("first", "second", "momentum", "master")
        held |= {f"optimizer.{number}.{kind}": parameter.detach() for kind in kinds}
    return held


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
