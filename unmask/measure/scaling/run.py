"""Measuring a wall: every way at every length, each in its own process, then curves, then probes.

The order is by length, so that a run whose time ends has the short lengths of every way. A way that did not
fit, or cannot run, is not tried at longer ones. A point is begun only if the time that its shorter one took,
carried on as it grew before, still fits.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from unmask.interpret.watch import Watch, unwatched
from unmask.measure.bench.workloads import random_ids
from unmask.measure.benchmark_model import BenchmarkModel, benchmark_model
from unmask.measure.machine import Machine, this_machine
from unmask.measure.peers import PEERS
from unmask.measure.scaling.curves import curves_of, expected_seconds, probe_length, probed
from unmask.measure.scaling.in_subprocess import Tick, measure_in_subprocess
from unmask.measure.scaling.journal import Journal
from unmask.measure.scaling.limits import USED_SHARE, free_bytes
from unmask.measure.scaling.one import IDS, Request
from unmask.measure.scaling.report import ScalingCurves, ScalingPoint, ScalingReport, fitted
from unmask.measure.scaling.settings import GRID_SHARE, ScalingSettings, lengths_of, ways_of
from unmask.model.weights import Source, read_checkpoint

Measure = Callable[[Request, float, Tick], ScalingPoint]
PROBE_REPEATS = 3
DISTURBED = 1.5
"""Slowest over quickest call of a point, from which on a machine was not alone with it."""
PROBE_TIME_SHARE = 0.6
"""Of what is left, what the probe of one way may take before the next one's."""


@dataclass
class _Run:
    """What stays the same for all points of a run."""

    settings: ScalingSettings
    chosen: BenchmarkModel
    work: Path
    ids: tuple[int, ...]
    threads: int
    memory_bytes: int | None
    ways: tuple[str, ...]
    lengths: tuple[int, ...]
    limit: int | None
    """Where the position table ends; None where nothing sets a limit."""
    journal: Journal | None
    watch: Watch
    measure: Measure
    clock: Callable[[], float]
    began: float
    points: list[ScalingPoint] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        return self.began + self.settings.seconds

    @property
    def total(self) -> int:
        return len(self.ways) * (len(self.lengths) + 1)

    def request(self, way: str, length: int, seconds: float, repeats: int) -> Request:
        """What one process is told."""
        return Request(
            way=way,
            length=length,
            folder=str(self.chosen.folder),
            head=asdict(self.chosen.head),
            max_tokens=self.chosen.record.max_tokens,
            work=str(self.work),
            ids=self.ids,
            dtype=self.settings.dtype,
            device=self.settings.device,
            threads=self.threads,
            repeats=repeats,
            seconds=seconds,
            memory_bytes=self.memory_bytes,
        )

    def run_one(self, request: Request, done: int) -> ScalingPoint:
        """Measure, watched."""
        what = f"{request.way}, {request.length:,} tokens"
        self.watch(what, done, self.total)
        return self.measure(request, self.deadline, lambda: self.watch(what, done, self.total))

    def of(self, way: str) -> list[ScalingPoint]:
        """Its points so far, by length."""
        return [point for point in self.points if point.kernel == way]


def run_scaling(
    settings: ScalingSettings,
    watch: Watch | None = None,
    *,
    journal: Path | None = None,
    restart: bool = False,
    measure: Measure = measure_in_subprocess,
    clock: Callable[[], float] = time.monotonic,
) -> ScalingReport:
    """Time and peak memory over length, curves a + b N + c N^2, and the longest text that fits here.

    Args:
        settings: what is measured, and how long it may take.
        watch: see `unmask.interpret.watch.Watch`; called between points and ten times a second during one. What it
            raises goes through, and no process stays behind.
        journal: a file that points are kept in as they are measured, and read from if it is there; removed
            when every point is decided.
        restart: throw away the points that it holds.
        measure: how one point is measured; tests give others.
        clock: seconds from any beginning.

    Raises:
        InvalidRequest: there is no such model, shape or length, or the journal is another run's.
        CheckpointError: the model cannot be found or read.
        OutputError: the journal cannot be written.
    """
    with _begun(settings, watch, journal=journal, restart=restart, measure=measure, clock=clock) as run:
        _grid(run)
        shown, unprobed = _probe(run)
        run.watch("done", run.total, run.total)
        if run.journal is not None and all(point.outcome != "no time" for point in run.points):
            run.journal.remove()
        by_name = {one.kernel: one for one in shown}
        return ScalingReport(
            protocol="wall",
            measured=run.chosen.record,
            machine=_machine(run),
            dtype=settings.dtype,
            device=settings.device,
            memory_bytes=run.memory_bytes,
            memory_from=_memory_from(settings, run.memory_bytes),
            seconds_budget=settings.seconds,
            seconds_spent=clock() - run.began,
            repeats=settings.repeats,
            seed=settings.seed,
            points=tuple(fitted(point, by_name[point.kernel]) for point in run.points),
            curves=tuple(shown),
            notes=(*_notes(run), *unprobed),
        )


@contextmanager
def _begun(
    settings: ScalingSettings,
    watch: Watch | None,
    *,
    journal: Path | None,
    restart: bool,
    measure: Measure,
    clock: Callable[[], float],
) -> Iterator[_Run]:
    began = clock()
    name = "default" if settings.model is None and settings.shape is None else settings.model
    watch = watch or unwatched
    watch("preparing the model", 0, 1)
    with (
        benchmark_model(
            name, settings.shape, layers=settings.layers, seed=settings.seed, revision=settings.revision
        ) as chosen,
        tempfile.TemporaryDirectory(prefix="unmask-wall-") as work,
    ):
        record = chosen.record
        checkpoint = read_checkpoint(Source(chosen.folder, record.name, record.revision))
        limit = (
            checkpoint.spec.max_tokens
        )  # of positions: longer texts than a checkpoint says it reads can run
        lengths = lengths_of(settings, limit)
        memory = settings.memory_bytes
        free = None if memory is not None else free_bytes(settings.device)
        threads = settings.threads or torch.get_num_threads()
        ids = random_ids(checkpoint.tokenizer, IDS, settings.seed)
        kept = (
            None if journal is None else Journal(journal, _what(settings, chosen, threads), restart=restart)
        )
        yield _Run(
            settings=settings,
            chosen=chosen,
            work=Path(work),
            ids=tuple(int(one) for one in ids),
            threads=threads,
            memory_bytes=memory if free is None else int(USED_SHARE * free),
            ways=ways_of(settings, checkpoint.spec, lengths[-1]),
            lengths=lengths,
            limit=limit,
            journal=kept,
            watch=watch,
            measure=measure,
            clock=clock,
            began=began,
        )


def _what(settings: ScalingSettings, chosen: BenchmarkModel, threads: int) -> object:
    """What a point depends on: not how long a run may take, and not which points are asked for."""
    kept = {key: getattr(settings, key) for key in ("memory_bytes", "dtype", "device", "seed", "repeats")}
    here = this_machine(torch.device("cpu"))
    where = (here.processor, here.cores, here.unmask, here.commit, version("torch"))
    return [kept, asdict(chosen.record), threads, where]


def _grid(run: _Run) -> None:
    """Every way at every length, into ``run.points``."""
    planned = [(length, way) for length in run.lengths for way in run.ways]
    for number, (length, way) in enumerate(planned):
        kept = None if run.journal is None else run.journal.find(way, length)
        point = kept or _skipped(run, way, length)
        if point is None:
            left = run.began + GRID_SHARE * run.settings.seconds - run.clock()
            share = max(0.0, left / (len(planned) - number))
            point = run.run_one(run.request(way, length, share, run.settings.repeats), number)
        run.points.append(point)
        if kept is None and run.journal is not None:
            run.journal.add(point)


def _probe(run: _Run) -> tuple[list[ScalingCurves], list[str]]:
    """The curves of every way with their probes, and which had no time for one."""
    curves = [curves_of(way, run.of(way), run.memory_bytes, run.limit, run.settings.seed) for way in run.ways]
    shown, unprobed = [], []
    for number, found in enumerate(curves):
        left = run.deadline - run.clock()
        share = left if number == len(curves) - 1 else PROBE_TIME_SHARE * left
        wanted = probe_length(found, run.of(found.kernel), run.limit, share)
        if wanted is None:
            shown.append(found.shown)
            if found.shown.time is not None:
                unprobed.append(f"{found.kernel}: no time was left for a probe; give more --seconds")
            continue
        length, why = wanted
        request = run.request(found.kernel, length, share / 3, PROBE_REPEATS)
        shown.append(probed(found, run.run_one(request, len(run.points) + number), why))
    return shown, unprobed


def _skipped(run: _Run, way: str, length: int) -> ScalingPoint | None:
    """The point without a measurement, where there is a reason for none."""
    peer = next((peer for peer in PEERS if peer.name == way), None)
    missing = None if peer is None else peer.unavailable()
    if missing is not None:
        return ScalingPoint(way, length, "refused", missing)
    before = run.of(way)
    ended = next((point for point in before if not point.measured), None)
    if ended is not None:
        return ScalingPoint(way, length, ended.outcome, f"not tried: see {ended.length:,} tokens")
    left = run.began + GRID_SHARE * run.settings.seconds - run.clock()
    cost = expected_seconds(before, length)
    if left <= 0 or cost > left:
        takes = f"it would take about {cost:,.0f} s and " if before else ""
        return ScalingPoint(
            way, length, "no time", f"not begun: {takes}{max(0.0, left):,.0f} s were left for it"
        )
    return None


def _notes(run: _Run) -> list[str]:
    limit, notes = run.limit, []
    if limit is not None and limit == run.lengths[-1]:
        notes.append(f"the position table ends at {limit:,} tokens, so no length is beyond it")
    beyond = [length for length in run.settings.lengths if limit is not None and length > limit]
    if beyond:
        asked = ", ".join(f"{length:,}" for length in sorted(beyond))
        notes.append(f"left out, since the position table ends at {limit:,} tokens: {asked}")
    spreads = [spread for point in run.points if (spread := point.seconds) is not None]
    wide = sum(spread.highest > DISTURBED * spread.lowest for spread in spreads)
    if wide > len(spreads) / 4:
        notes.append(
            f"at {wide} of {len(spreads)} points the slowest call took more than {DISTURBED} times the "
            "quickest: something else was running, so measure again when nothing is"
        )
    if any(point.outcome == "no time" for point in run.points):
        notes.append("the time ended before every length was measured; give more --seconds")
    return notes


def _memory_from(settings: ScalingSettings, memory: int | None) -> str:
    if settings.memory_bytes is not None:
        return "as asked for"
    return "unknown" if memory is None else f"{USED_SHARE:.0%} of what was free when the run began"


def _machine(run: _Run) -> Machine:
    """This one, with the threads that the processes had."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        return this_machine(torch.device(run.settings.device))
    finally:
        torch.set_num_threads(before)
