"""The processes that share a run, and sums over them; a single process needs no torchrun.

Those that torchrun started join one run, which ends together with at most one error message.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import distributed

from unmask.errors import InvalidRequest, ProcessLost, UnmaskError
from unmask.training.run.settings import Device

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


Made = TypeVar("Made")


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of the run.

    Collective operations must be called by all processes in the same order. With a single process they cost
    nothing.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    local: int = 0
    """Local rank on this machine, which is also the number of its CUDA device."""
    waiting: "distributed.ProcessGroup | None" = None
    """Process group for waits that may take hours; None uses the default group and its timeout."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum each value over all processes, which must have the same keys in the same order."""
        if self.world == 1:
            return dict(values)
        # On the host, where the numbers are: a sum on a GPU would wait for all queued work.
        added = torch.tensor(list(values.values()), dtype=torch.float64)
        distributed.all_reduce(added)
        return dict(zip(values, added.tolist(), strict=True))

    def of_first(self, value: int) -> int:
        """The first process's value; the others wait for it without a time limit."""
        if self.world == 1:
            return value
        number = torch.tensor(value if self.first else 0)
        distributed.all_reduce(number, group=self.waiting)
        return int(number)

    def on(self, device: Device) -> "Ranks":
        """The same process with its device: that of the settings; each process has its own CUDA device.

        Raises:
            InvalidRequest: cuda is requested and not available, or there are fewer devices than processes.
        """
        available = torch.cuda.is_available()
        if device == "cuda" and not available:
            raise InvalidRequest("device is cuda, and torch finds no CUDA device here; use cpu or auto")
        if not available or device == "cpu":
            return replace(self, device=torch.device("cpu"))
        if self.local >= torch.cuda.device_count():
            raise InvalidRequest(
                f"process {self.local + 1} of this machine has no CUDA device, of which there are "
                f"{torch.cuda.device_count()}; start fewer processes, or set device to cpu"
            )
        return replace(self, device=torch.device("cuda", self.local))

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        self.of_first(0)

    def first_alone(self, work: Callable[[], Made]) -> Made:
        """Run ``work`` in the first process, then in the others, which find its results on disk."""
        if not self.first:
            self.wait()
        result = work()
        if self.first:
            self.wait()
        return result


NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets."""

SPOKEN = "unmask/spoken"
"""Key of the common store for the process that ends the run with an error message."""

LONGEST_WORK = timedelta(days=7)
"""How long processes wait while the first reads all text or writes a model."""

_CONNECTION = re.compile(r"gloo|nccl|connection|timed? ?out|socket|peer", re.IGNORECASE)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Context in which this process is one of those that torchrun started, or the only one.

    Host tensors use gloo, CUDA tensors NCCL. An error that leaves the block in one process ends the run: that
    process raises it, and the others, which notice at their next collective operation, exit silently with the
    same status (1, or 130 if the run was stopped).

    Raises:
        InvalidRequest: the environment is not as torchrun sets it.
        ProcessLost: another process is gone, or the processes cannot connect.
    """
    ranks = _numbers(os.environ)
    if ranks.world == 1:
        yield ranks
        return
    if not distributed.is_available():
        raise InvalidRequest("this torch has no torch.distributed; run in one process")
    store = _meet(ranks)
    try:
        # Long waits use their own group, so that a lost message elsewhere is noticed sooner.
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
                "another process of the run ended without a message; the same command resumes from "
                f"the newest checkpoint ({first_line(error)})"
            ) from None
        raise
    # After an error the group is not destroyed, because that would wait for processes that are gone.
    distributed.destroy_process_group()


def _numbers(environment: Mapping[str, str]) -> Ranks:
    """Read and check rank, world size and local rank."""
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
    """Connect to the other processes; return the common store."""
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
        raise ProcessLost(f"the processes of the run cannot connect: {first_line(error)}") from None
    return store


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error."""
    text = getattr(error, "strerror", None) or str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _speaks(store: "Store", rank: int) -> bool:
    """Whether this process is the first to end the run. If the store is gone, another process was."""
    with contextlib.suppress(RuntimeError, OSError):
        return bool(store.compare_set(SPOKEN, "", str(rank)) == str(rank).encode())
    return False
