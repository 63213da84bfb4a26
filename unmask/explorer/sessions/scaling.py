"""Length scaling in the background: one measurement at a time, and nothing else runs during a point."""

import threading
from dataclasses import asdict, dataclass
from typing import Any

from unmask.bench.scaling.point import Request, Tick, measure_in_subprocess
from unmask.bench.scaling.report import ScalingPoint, to_plain
from unmask.bench.scaling.run import run_scaling
from unmask.bench.scaling.settings import ScalingSettings, known_ways
from unmask.explorer.wire.page_request import Json
from unmask.http.errors import Problem, Refused
from unmask.http.worker import Job, Watch, Worker


@dataclass(frozen=True)
class WallState:
    """The length-scaling measurement. ``phase``: none, waiting, running, done, stopped or failed; ``eta_s``:
    what is left of the seconds given; ``ways``: the kernels and libraries that may be asked for. ``points``
    are those measured so far and ``report`` is the final report, both as in ``unmask scaling --json``."""

    phase: str
    what: str
    done: int
    total: int
    seconds: float
    eta_s: float | None
    problem: Problem | None
    ways: tuple[str, ...]
    points: Json
    report: Json


class LengthScaling:
    """The one measurement of this explorer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._job: Job | None = None
        self._report: Any = None
        self._points: list[Any] = []
        self._lock = threading.Lock()
        self._budget = 0.0

    def start(self, settings: ScalingSettings) -> WallState:
        """Begin to measure.

        Raises:
            Refused: one is being measured already.
        """
        with self._lock:
            if self._job is not None and self._job.phase in ("waiting", "running"):
                raise Refused(
                    409, "Busy", "a measurement is already running; stop it or wait for it to finish"
                )
            self._report, self._points, self._budget = None, [], settings.seconds
            job = Job(lambda watch: self._measure(settings, job, watch))
            self._job = job
            self._worker.start(job)
        return self.state()

    def stop(self) -> None:
        """Stop it; measured points are kept."""
        if self._job is not None:
            self._job.stop()

    def state(self) -> WallState:
        """Progress and results so far."""
        job = self._job
        return WallState(
            phase="none" if job is None else job.phase,
            what="" if job is None else job.what,
            done=0 if job is None else job.done,
            total=0 if job is None else job.total,
            seconds=0.0 if job is None else round(job.seconds, 2),
            eta_s=self._left(job),
            problem=None if job is None else job.problem,
            ways=known_ways(),
            points=list(self._points),
            report=self._report,
        )

    def _left(self, job: Job | None) -> float | None:
        """What is left of the seconds given: later lengths take longer, so the pace so far says nothing."""
        if job is None or job.phase != "running":
            return None
        return round(max(0.0, self._budget - job.seconds), 1)

    def _measure(self, settings: ScalingSettings, job: Job, watch: Watch) -> None:
        noted = ""

        def between_points(what: str, done: int, total: int) -> None:
            # Anything that ran during a point would affect its time, so other work runs only between points.
            nonlocal noted
            if what == noted:
                job.note(what, done, total)
            else:
                watch(what, done, total)
            noted = what

        def measured(request: Request, deadline: float, tick: Tick) -> ScalingPoint:
            point = measure_in_subprocess(request, deadline, tick)
            seconds = None if point.seconds is None else asdict(point.seconds)
            self._points.append({**asdict(point), "seconds": seconds})
            return point

        self._report = to_plain(run_scaling(settings, between_points, measure=measured))
