"""The processes that share a run, and sums over them; a single process needs no torchrun."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import distributed

from unmask.errors import InvalidRequest
from unmask.training.run.settings import Device

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

    def on(self, wanted: Device) -> "Ranks":
        """The same process with its device: that of the settings; each process has its own CUDA device.

        Raises:
            InvalidRequest: cuda is requested and not available, or there are fewer devices than processes.
        """
        available = torch.cuda.is_available()
        if wanted == "cuda" and not available:
            raise InvalidRequest("device is cuda, and torch finds no CUDA device here; use cpu or auto")
        if not available or wanted == "cpu":
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
