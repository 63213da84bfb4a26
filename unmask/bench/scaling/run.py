"""Measure length scaling: every implementation at every length in its own process, then curves, then probes.

Points are ordered by length, so that a run whose time ends has the short lengths of every implementation.
An implementation that did not fit, or cannot run, is not tried at longer lengths. A point is started only if
its time, extrapolated from the shorter ones, is within the budget. Points are kept in a journal as they are
measured, one JSON line each, so that an interrupted run can resume.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from unmask.base.files import unwritable
from unmask.base.progress import Watch, unwatched
from unmask.bench.benchmark_model import BenchmarkModel, benchmark_model, random_ids
from unmask.bench.machine import Machine, this_machine
from unmask.bench.memory import USED_SHARE, free_bytes
from unmask.bench.scaling.curves import curves_of, expected_seconds, probe_length, probed
from unmask.bench.scaling.point import IDS, Request, Tick, measure_in_subprocess
from unmask.bench.scaling.report import ScalingCurves, ScalingPoint, ScalingReport, fitted, read_value
from unmask.bench.scaling.settings import GRID_SHARE, ScalingSettings, lengths_of, ways_of
from unmask.errors import InvalidRequest
from unmask.weights import Source, read_checkpoint
from unmask.weights.read.fingerprint import fingerprint

DECIDED = ("measured", "did not fit")
"""Outcomes that a later run does not retry; others may change with more time or another library installed."""

Measure = Callable[[Request, float, Tick], ScalingPoint]
PROBE_REPEATS = 3
DISTURBED = 1.5
"""Ratio of the slowest to the fastest call of a point, above which the machine is considered busy."""
PROBE_TIME_SHARE = 0.6
"""Fraction of the remaining time that one implementation's probe may take."""


def journal_of(output: Path) -> Path:
    """Where the points of the report ``output`` are kept until it is complete."""
    return output.with_name(f"{output.name}.points")


class Journal:
    """The points of one run, in their own file.

    Args:
        path: the file; it is created with the first point.
        what: everything that a point depends on; points of anything else are not resumed.
        restart: discard existing points.

    Raises:
        InvalidRequest: the file holds points of other settings, or is not a journal.
    """

    def __init__(self, path: Path, what: object, *, restart: bool = False) -> None:
        self.path = path
        plain = json.dumps(what, sort_keys=True, default=str)
        self._head = {"scaling": hashlib.sha256(plain.encode()).hexdigest()}
        if restart:
            self.remove()
        self.points = self._points()

    def _points(self) -> list[ScalingPoint]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"cannot read {self.path}: {error}") from None
        values = []
        for line in lines:
            with suppress(ValueError):  # a process killed while writing leaves a partial last line
                values.append(json.loads(line))
        if not values:
            return []
        if values[0] != self._head:
            raise InvalidRequest(
                f"{self.path} holds points of another model, machine or setting; name another file with "
                "--output, or start again with --restart"
            )
        return [read_value(ScalingPoint, value, str(self.path)) for value in values[1:]]

    def find(self, kernel: str, length: int) -> ScalingPoint | None:
        """The point, if an earlier run has decided it."""
        return next(
            (point for point in self.points if (point.kernel, point.length) == (kernel, length)), None
        )

    def add(self, point: ScalingPoint) -> None:
        """Store a decided point; it is on disk when this returns.

        Raises:
            OutputError: it cannot be written.
        """
        if point.outcome not in DECIDED:
            return
        lines = [asdict(point)] if self.points else [self._head, asdict(point)]
        try:
            # The first point overwrites the file: it held no complete line, if anything.
            with self.path.open("a" if self.points else "w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"\n{json.dumps(line)}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from None
        self.points.append(point)

    def remove(self) -> None:
        """Forget all points, and the file."""
        self.points = []
        with suppress(FileNotFoundError):
            self.path.unlink()


@dataclass
class _Run:
    """The state shared by all points of a run."""

    settings: ScalingSettings
    chosen: BenchmarkModel
    ids: tuple[int, ...]
    threads: int
    memory_bytes: int | None
    ways: tuple[str, ...]
    lengths: tuple[int, ...]
    limit: int | None
    """Size of the position table; None without a limit."""
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
        """The request for one process."""
        return Request(
            way=way,
            length=length,
            folder=str(self.chosen.folder),
            max_tokens=self.chosen.record.max_tokens,
            ids=self.ids,
            dtype=self.settings.dtype,
            device=self.settings.device,
            threads=self.threads,
            repeats=repeats,
            seconds=seconds,
            memory_bytes=self.memory_bytes,
        )

    def run_one(self, request: Request, done: int) -> ScalingPoint:
        """Measure one point and report progress."""
        what = f"{request.way}, {request.length:,} tokens"
        self.watch(what, done, self.total)
        return self.measure(request, self.deadline, lambda: self.watch(what, done, self.total))

    def of(self, way: str) -> list[ScalingPoint]:
        """The implementation's points so far, by length."""
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
    """Measure time and peak memory over length, fit a + b N + c N^2, and predict the longest text that fits.

    Args:
        settings: what to measure, and for how long.
        watch: see `unmask.base.progress.Watch`; called between points and ten times a second during one.
            Exceptions it raises propagate, and no process is left running.
        journal: a file in which points are stored as they are measured and from which they are resumed;
            removed when every point is decided.
        restart: discard the points in the journal.
        measure: measures one point; replaced in tests.
        clock: seconds from an arbitrary start.

    Raises:
        InvalidRequest: there is no such model, architecture or length, or the journal belongs to another run.
        CheckpointError: the model cannot be found or read.
        OutputError: the journal cannot be written.
    """
    with _begun(settings, watch, journal=journal, restart=restart, measure=measure, clock=clock) as run:
        _grid(run)
        curves, unprobed = _probe(run)
        run.watch("done", run.total, run.total)
        if run.journal is not None and all(point.outcome != "no time" for point in run.points):
            run.journal.remove()
        by_name = {drawn_curves.kernel: drawn_curves for drawn_curves in curves}
        return ScalingReport(
            protocol="scaling",
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
            curves=tuple(curves),
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
    name = "default" if settings.model is None and settings.architecture is None else settings.model
    watch = watch or unwatched
    watch("preparing the model", 0, 1)
    with benchmark_model(
        name,
        settings.architecture,
        layers=settings.layers,
        seed=settings.seed,
        revision=settings.revision,
    ) as chosen:
        record = chosen.record
        checkpoint = read_checkpoint(Source(chosen.folder, record.name, record.revision))
        limit = (
            checkpoint.spec.max_tokens
        )  # of positions: longer texts than the checkpoint declares can still run
        lengths = lengths_of(settings, limit)
        memory = settings.memory_bytes
        free = None if memory is not None else free_bytes(settings.device)
        threads = settings.threads or torch.get_num_threads()
        ids = random_ids(checkpoint.tokenizer, IDS, settings.seed)
        what = [*_what(settings, chosen, threads), fingerprint(checkpoint, ())]
        points = None if journal is None else Journal(journal, what, restart=restart)
        yield _Run(
            settings=settings,
            chosen=chosen,
            ids=tuple(int(id_) for id_ in ids),
            threads=threads,
            memory_bytes=memory if free is None else int(USED_SHARE * free),
            ways=ways_of(settings, checkpoint.spec, lengths[-1]),
            lengths=lengths,
            limit=limit,
            journal=points,
            watch=watch,
            measure=measure,
            clock=clock,
            began=began,
        )


def _what(settings: ScalingSettings, chosen: BenchmarkModel, threads: int) -> list[object]:
    """What a point depends on besides the checkpoint; not the time budget and the selection of points."""
    values = {key: getattr(settings, key) for key in ("memory_bytes", "dtype", "device", "seed", "repeats")}
    here = this_machine(torch.device("cpu"))
    where = (here.processor, here.cores, here.unmask, here.commit, version("torch"))
    return [values, asdict(chosen.record), threads, where]


def _grid(run: _Run) -> None:
    """Measure every implementation at every length, into ``run.points``."""
    planned = [(length, way) for length in run.lengths for way in run.ways]
    for number, (length, way) in enumerate(planned):
        decided = None if run.journal is None else run.journal.find(way, length)
        point = decided or _skipped(run, way, length)
        if point is None:
            seconds_left = run.began + GRID_SHARE * run.settings.seconds - run.clock()
            share = max(0.0, seconds_left / (len(planned) - number))
            point = run.run_one(run.request(way, length, share, run.settings.repeats), number)
        run.points.append(point)
        if decided is None and run.journal is not None:
            run.journal.add(point)


def _probe(run: _Run) -> tuple[list[ScalingCurves], list[str]]:
    """The curves of every implementation with their probes, and notes on those without time for a probe."""
    curves = [curves_of(way, run.of(way), run.memory_bytes, run.limit, run.settings.seed) for way in run.ways]
    shown, unprobed = [], []
    for number, fits in enumerate(curves):
        seconds_left = run.deadline - run.clock()
        share = seconds_left if number == len(curves) - 1 else PROBE_TIME_SHARE * seconds_left
        chosen = probe_length(fits, run.of(fits.kernel), run.limit, share)
        if chosen is None:
            shown.append(fits.shown)
            if fits.shown.time is not None:
                unprobed.append(f"{fits.kernel}: no time was left for a probe; give more --seconds")
            continue
        length, why = chosen
        request = run.request(fits.kernel, length, share / 3, PROBE_REPEATS)
        shown.append(probed(fits, run.run_one(request, len(run.points) + number), why))
    return shown, unprobed


def _skipped(run: _Run, way: str, length: int) -> ScalingPoint | None:
    """A point without a measurement, if there is a reason to skip it."""
    before = run.of(way)
    ended = next((point for point in before if not point.measured), None)
    if ended is not None:
        return ScalingPoint(way, length, ended.outcome, f"not tried: see {ended.length:,} tokens")
    seconds_left = run.began + GRID_SHARE * run.settings.seconds - run.clock()
    cost = expected_seconds(before, length)
    if seconds_left <= 0 or cost > seconds_left:
        takes = f"it would take about {cost:,.0f} s and " if before else ""
        return ScalingPoint(
            way, length, "no time", f"not started: {takes}{max(0.0, seconds_left):,.0f} s were left for it"
        )
    return None


def _notes(run: _Run) -> list[str]:
    limit, notes = run.limit, []
    if limit is not None and limit == run.lengths[-1]:
        notes.append(f"the position table ends at {limit:,} tokens, so no longer text is measured")
    beyond = [length for length in run.settings.lengths if limit is not None and length > limit]
    if beyond:
        requested = ", ".join(f"{length:,}" for length in sorted(beyond))
        notes.append(f"left out, because the position table ends at {limit:,} tokens: {requested}")
    spreads = [spread for point in run.points if (spread := point.seconds) is not None]
    wide = sum(spread.highest > DISTURBED * spread.lowest for spread in spreads)
    if wide > len(spreads) / 4:
        notes.append(
            f"at {wide} of {len(spreads)} points the slowest call took more than {DISTURBED} times the "
            "fastest: the machine was busy, so measure again when it is idle"
        )
    if any(point.outcome == "no time" for point in run.points):
        notes.append("the time ended before every length was measured; give more --seconds")
    return notes


def _memory_from(settings: ScalingSettings, memory: int | None) -> str:
    if settings.memory_bytes is not None:
        return "as requested"
    return "unknown" if memory is None else f"{USED_SHARE:.0%} of the memory free at the start of the run"


def _machine(run: _Run) -> Machine:
    """This machine, with the threads that the processes used."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        return this_machine(torch.device(run.settings.device))
    finally:
        torch.set_num_threads(before)
