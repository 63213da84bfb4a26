"""One point in its own process: the parent's side, which monitors it and ends it in time, and the process.

``python -m unmask.bench.scaling.point JSON`` prints one JSON line after each step, so that earlier steps
count however the process ends.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.system import KILLED, end_with_children
from unmask.bench.memory import allow_more, die_first, held_bytes
from unmask.bench.scaling.report import Outcome, ScalingPoint
from unmask.bench.scaling.settings import CHOSEN

TICK_SECONDS = 0.1
"""Interval at which the parent does other work while a point is measured."""
Tick = Callable[[], None]
IDS = 64
"""Number of distinct ids in every text, including the warm-up's: otherwise rows of the embedding matrix read
from disk for the first time would count as memory that grows with length."""
QUICK_SECONDS, QUICK_REPEATS = 0.25, 25
"""Short calls are repeated more often: this costs almost nothing compared with loading the model."""
MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
"""Messages of torch and the libraries below it when an allocation fails."""
Call = Callable[[NDArray[np.int64]], object]
Load = Callable[["Request"], tuple[Call, set[str]]]
"""Makes a function that runs a sequence of ids, and the set of kernels that its calls ran."""


@dataclass(frozen=True)
class Request:
    """What one process measures."""

    way: str
    length: int
    folder: str
    max_tokens: int | None
    ids: tuple[int, ...]
    dtype: str
    device: str
    threads: int
    repeats: int
    seconds: float
    """Time for timed calls, after which no further call starts. The first always runs."""
    memory_bytes: int | None


def measure_in_subprocess(
    request: Request,
    deadline: float,
    tick: Tick,
    program: Sequence[str] = ("unmask.bench.scaling.point",),
) -> ScalingPoint:
    """Measure one point in a process of its own.

    Args:
        request: what to measure.
        deadline: on `time.monotonic`; the process is ended then, and what it has measured counts.
        tick: called every `TICK_SECONDS`; an exception in it ends the process and propagates to the caller.
        program: the module that runs `main`, and its arguments before the request.
    """
    start = time.monotonic()
    command = [sys.executable, "-m", *program, json.dumps(asdict(request))]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        late = False
        try:
            while child.poll() is None and not late:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(TICK_SECONDS)
                tick()
                late = child.poll() is None and time.monotonic() > deadline
        finally:
            end_with_children(child)
        lines, last = _lines(out), _last_line(err)
    return _point(request, lines, (child.returncode, late, last), time.monotonic() - start)


def _point(
    request: Request, lines: list[dict[str, object]], ending: tuple[int, bool, str], process: float
) -> ScalingPoint:
    reported: dict[str, object] = {}
    for line in lines:
        reported |= line
    code, late, last = ending
    repeats = tuple(float(str(line["seconds"])) for line in lines if "seconds" in line)
    outcome, note = _ending(reported, code, late, last, bool(repeats))
    ran, peak, resting = reported.get("ran"), reported.get("peak_bytes"), reported.get("resting_bytes")
    return ScalingPoint(
        kernel=request.way,
        length=request.length,
        outcome=outcome,
        note=note,
        ran=tuple(ran) if isinstance(ran, list) else (),
        repeats=repeats,
        peak_bytes=peak if isinstance(peak, int) else None,
        resting_bytes=resting if isinstance(resting, int) else None,
        process_seconds=process,
    )


def _ending(
    reported: dict[str, object], code: int, late: bool, last: str, timed: bool
) -> tuple[Outcome, str]:
    """How the process ended: by its own report, by the time budget, or by a signal."""
    if "outcome" in reported:
        outcome: Outcome = reported["outcome"]  # type: ignore[assignment]
        return outcome, str(reported["note"])
    if late:
        return ("measured", "") if timed else ("no time", "the time budget of this run ended during it")
    if code == KILLED:
        return "did not fit", "the system killed the process, as it does when memory runs out"
    if code < 0:
        name = signal.Signals(-code).name
        # A library that cannot handle a failed allocation aborts.
        kind: Outcome = "did not fit" if "resting_bytes" in reported and "alloc" in last.lower() else "failed"
        return kind, f"the process ended by {name}{f': {last}' if last else ''}"
    return "failed", last or f"the process exited with code {code} and no message"


def _lines(out: IO[bytes]) -> list[dict[str, object]]:
    """Complete JSON objects among the lines; libraries print other lines, and a killed process a partial
    one."""
    out.seek(0)
    objects = []
    for line in out.read().decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                objects.append(value)
    return objects


def _last_line(err: IO[bytes]) -> str:
    err.seek(0)
    lines = err.read().decode("utf-8", "replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def main(load: Load | None = None) -> None:
    """Load, warm up, limit memory, measure peak memory in one call and the time of the others.

    ``load`` makes what is measured; None runs `unmask` itself.
    """
    die_first()
    request = Request(**json.loads(sys.argv[-1]))
    import torch

    torch.set_num_threads(request.threads)
    try:
        _measure(request, load or loaded)
    except Exception as error:
        say(**failure(error))


def _measure(request: Request, load: Load) -> None:
    import torch

    from unmask.bench.memory import peak_extra_bytes

    device = torch.device(request.device)
    call, ran = load(request)
    short = min(IDS, request.max_tokens or IDS)
    call(np.array(request.ids[:short], dtype=np.int64))
    if request.length != short:
        ran.clear()
    resting = held_bytes(request.device)
    say(resting_bytes=resting)
    if request.memory_bytes is not None and resting is not None:
        if resting >= request.memory_bytes:
            sizes = f"{resting / 2**20:,.0f} MiB of {request.memory_bytes / 2**20:,.0f}"
            say(outcome="did not fit", note=f"the loaded model alone holds {sizes}")
            return
        allow_more(request.memory_bytes - resting, request.device)
    ids_N = np.resize(np.array(request.ids, dtype=np.int64), request.length)
    peak = peak_extra_bytes(lambda: call(ids_N), device)
    say(peak_bytes=peak, ran=sorted(ran))
    spent, repeats, clock = 0.0, 0, time.perf_counter
    while repeats < request.repeats or (spent < QUICK_SECONDS and repeats < QUICK_REPEATS):
        start = clock()
        call(ids_N)
        seconds = clock() - start
        say(seconds=seconds)
        spent, repeats = spent + seconds, repeats + 1
        if spent >= request.seconds:
            break
    say(outcome="measured", note="")


def loaded(request: Request) -> tuple[Call, set[str]]:
    """A function that runs a sequence of ids, and the set of kernels that its calls ran."""
    import torch

    from unmask.models.load import load
    from unmask.text import PackedBatch

    kernel = None if request.way == CHOSEN else request.way
    model = load(request.folder, dtype=request.dtype, device=request.device, kernel=kernel)
    ran: set[str] = set()

    planned = model.encoder.plan

    def plan(*arguments: Any) -> Any:
        layer_plan = planned(*arguments)
        kernel = getattr(layer_plan, "kernel", None)
        ran.add("linear attention" if kernel is None else kernel.capability.name)
        return layer_plan

    # Every way to run a layer asks for its plan; the plan of a short text may be remembered.
    setattr(model.encoder, "plan", plan)  # noqa: B010
    cuda = request.device.startswith("cuda")

    def call(ids_N: NDArray[np.int64]) -> None:
        with torch.inference_mode():  # the result stays on the encoder's device
            model.encoder.encode(PackedBatch.of_ids([ids_N]))
        if cuda:
            torch.cuda.synchronize(request.device)

    return call, ran


def failure(error: Exception) -> dict[str, str]:
    """Classify an error, and return its message."""
    from unmask.bench.machine import sentence_of
    from unmask.errors import KernelError

    words = f"{type(error).__name__} {error}".lower()
    if isinstance(error, MemoryError) or "outofmemory" in words or any(w in words for w in MEMORY_WORDS):
        outcome = "did not fit"
    elif isinstance(error, KernelError):
        outcome = "refused"
    else:
        outcome = "failed"
    return {"outcome": outcome, "note": sentence_of(error) or type(error).__name__}


def say(**values: object) -> None:
    """Print one line for the parent, flushed."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
