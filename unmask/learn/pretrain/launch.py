"""The processes that torchrun started become one run, and end as one: with one sentence if with any."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

from unmask.errors import InvalidRequest, ProcessLost, UnmaskError
from unmask.learn.pretrain.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells a process, in its environment."""

SPOKEN = "unmask/spoken"
"""Key of the common store under which the process stands that ends the run with a sentence."""

LONGEST_WORK = timedelta(days=7)
"""How long processes wait while the first reads all text or writes a model."""

_CONNECTION = re.compile(r"gloo|nccl|connection|timed? ?out|socket|peer", re.IGNORECASE)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Within it, this process is one of those that torchrun started together; alone where it started one.

    Host tensors go over gloo and those of CUDA devices over NCCL. An error that leaves the block in one
    process ends the run: that process raises it, and the others, which notice at the next thing they do
    together, exit with the same status (1, or 130 where the run was stopped) and no word.

    Raises:
        InvalidRequest: the environment is not one that torchrun makes.
        ProcessLost: another process is gone, or the processes do not find one another.
    """
    ranks = _numbers(os.environ)
    if ranks.world == 1:
        yield ranks
        return
    if not distributed.is_available():
        raise InvalidRequest("this torch has no torch.distributed; run in one process")
    store = _meet(ranks)
    try:
        # What waits for long has a group of its own, so that a lost message elsewhere is noticed sooner.
        waiting = distributed.new_group(backend="gloo", timeout=LONGEST_WORK)
        ranks = Ranks(ranks.rank, ranks.world, local=ranks.local, waiting=waiting)
        yield ranks
        ranks.wait()
    except KeyboardInterrupt:
        if ranks.first:
            raise
        raise SystemExit(130) from None
    except UnmaskError:
        if _speaks(store, ranks.rank):
            raise
        raise SystemExit(1) from None
    except RuntimeError as error:
        if not _speaks(store, ranks.rank):
            raise SystemExit(1) from None
        if isinstance(error, distributed.DistError) or _CONNECTION.search(str(error)):
            raise ProcessLost(
                "another process of the run ended without a word; the same command goes on from the newest "
                f"checkpoint ({first_line(error)})"
            ) from None
        raise
    # After an error the group is left as it is: taking it down would wait for processes that are gone.
    distributed.destroy_process_group()


def _numbers(environment: Mapping[str, str]) -> Ranks:
    """Rank, world and local rank, checked."""
    if "WORLD_SIZE" not in environment:
        return Ranks()
    missing = [name for name in NAMES if name not in environment]
    numbers = [environment.get(name, "") for name in NAMES[:3]]
    if missing or not all(number.isdecimal() for number in numbers):
        raise InvalidRequest(
            "WORLD_SIZE is set as torchrun does it, and "
            + (f"{' and '.join(missing)} is missing" if missing else f"{NAMES[:3]} are {numbers}")
            + "; start the processes with torchrun, or unset it to run alone"
        )
    rank, world, local = map(int, numbers)
    if not 0 <= rank < world:
        raise InvalidRequest(f"RANK is {rank} of a WORLD_SIZE of {world}; it must be from 0 to {world - 1}")
    return Ranks(rank, world, local=local)


def _meet(ranks: Ranks) -> "Store":
    """Find the other processes; the store that all of them reach."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store: Store
        store, _, _ = next(rendezvous("env://", ranks.rank, ranks.world))
        backend = "gloo"
        if torch.cuda.is_available() and ranks.local < torch.cuda.device_count():
            torch.cuda.set_device(ranks.local)
            backend = "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world)
    except (RuntimeError, ValueError, OSError) as error:
        raise ProcessLost(f"the processes of the run do not find one another: {first_line(error)}") from None
    return store


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    text = getattr(error, "strerror", None) or str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _speaks(store: "Store", rank: int) -> bool:
    """Whether this process is the first to end the run. A store that is gone says that another was."""
    with contextlib.suppress(RuntimeError, OSError):
        return bool(store.compare_set(SPOKEN, "", str(rank)) == str(rank).encode())
    return False
