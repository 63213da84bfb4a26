"""The processes that share a run, and sums over them; one process alone needs no torchrun."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import distributed

Made = TypeVar("Made")


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    Whatever asks something of the other processes is called by all of them, in the same order. With one
    process it costs nothing.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    local: int = 0
    """Its number among the run's processes on this machine, which is that of its CUDA device."""
    waiting: "distributed.ProcessGroup | None" = None
    """Those of the run, for waits that may take hours; None takes the default group and its time limit."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value added up over all processes, which must have the same keys in the same order."""
        if self.world == 1:
            return dict(values)
        # On the host, where the numbers are: a sum on a GPU would wait for all that is queued there.
        added = torch.tensor(list(values.values()), dtype=torch.float64)
        distributed.all_reduce(added)
        return dict(zip(values, added.tolist(), strict=True))

    def of_first(self, value: int) -> int:
        """The value that the first process gives; the others wait for it however long it takes."""
        if self.world == 1:
            return value
        told = torch.tensor(value if self.first else 0)
        distributed.all_reduce(told, group=self.waiting)
        return int(told)

    def wait(self) -> None:
        """Until all processes are here."""
        self.of_first(0)

    def first_alone(self, work: Callable[[], Made]) -> Made:
        """Do something in the first process, then in the others, which find what it has left on the disk."""
        if not self.first:
            self.wait()
        made = work()
        if self.first:
            self.wait()
        return made
