"""Interleaved timing: calls take turns, medians are reported, and ratios are computed per round.

A change in machine speed affects all calls of a round, so the ratio of two within one round is more stable
than either time; its median and extremes are reported.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unmask.base.progress import Progress
from unmask.errors import InvalidRequest

Seconds = dict[str, tuple[float, ...]]
"""Wall time of each call in each round, in the order of rounds."""


@dataclass(frozen=True)
class Spread:
    """A median with the lowest and highest round."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one value per round."""
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
    """Run callables in turn, A B C A B C, and time every call.

    Args:
        works: the callables by name, in the order of turns.
        rounds: number of timed rounds.
        warm_up: number of untimed rounds before.
        budget_seconds: no round starts after the timed ones have taken this long; the first always runs.
        clock: seconds from an arbitrary start.
        progress: called with (finished calls, total calls).

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
    """The ratio of the seconds of ``slower`` to those of ``faster``, round by round."""
    return Spread.of([a / b for a, b in zip(times[slower], times[faster], strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all (above 0, at most 1) do not exceed."""
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(rank, 1) - 1]
