"""Fair timing: works take turns, medians are reported, and ratios are taken round by round.

A machine that speeds up or slows down does so for all works of a round, so the ratio of two within one
round is steadier than either time; its median and its extremes are what is worth reporting.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unmask.errors import InvalidRequest
from unmask.tasks.progress import Progress

Seconds = dict[str, tuple[float, ...]]
"""Wall time of each work in each round, in the order of the rounds."""


@dataclass(frozen=True)
class Spread:
    """A median and how far single rounds were from it."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value a round."""
        return cls(statistics.median(values), min(values), max(values))


def interleaved(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    budget_seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Seconds:
    """Run works in turn, A B C A B C, and time every call.

    Args:
        works: what is timed, by name; the order is the order of turns.
        rounds: how often each is timed.
        warm_up: untimed rounds before.
        budget_seconds: no round begins when the timed ones have taken as long; the first always runs.
        clock: seconds from any beginning.
        progress: called with (calls done, calls in all).

    Raises:
        InvalidRequest: fewer than one round is asked for.
    """
    if rounds < 1:
        raise InvalidRequest(f"rounds is {rounds}; it must be at least 1")
    total, done = (warm_up + rounds) * len(works), 0
    times: dict[str, list[float]] = {name: [] for name in works}
    spent = 0.0
    for number in range(warm_up + rounds):
        if number > warm_up and budget_seconds is not None and spent >= budget_seconds:
            break
        for name, work in works.items():
            start = clock()
            work()
            seconds = clock() - start
            if number >= warm_up:
                times[name].append(seconds)
                spent += seconds
            done += 1
            if progress is not None:
                progress(done, total)
    return {name: tuple(each) for name, each in times.items()}


def ratio(times: Seconds, slower: str, faster: str) -> Spread:
    """How many times the seconds of ``faster`` those of ``slower`` are, round by round."""
    return Spread.of([a / b for a, b in zip(times[slower], times[faster], strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all (above 0, at most 1) do not exceed."""
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(rank, 1) - 1]
