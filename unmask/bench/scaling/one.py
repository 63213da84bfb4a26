"""One point in its own process: ``python -m unmask.bench.scaling.one JSON``.

Prints one JSON line after each step, so that earlier steps count however the process ends.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.bench.scaling.limits import allow_more, die_first, held_bytes
from unmask.spec import PooledVector

IDS = 64
"""Number of distinct ids in every text, including the warm-up's: otherwise rows of the embedding matrix read
from disk for the first time would count as memory that grows with length."""
QUICK_SECONDS, QUICK_REPEATS = 0.25, 25
"""Short calls are repeated more often: this costs almost nothing compared with loading the model."""
MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
"""Messages of torch and the libraries below it when an allocation fails."""


@dataclass(frozen=True)
class Request:
    """What one process measures."""

    way: str
    length: int
    folder: str
    head: dict[str, Any]
    max_tokens: int | None
    work: str
    ids: tuple[int, ...]
    dtype: str
    device: str
    threads: int
    repeats: int
    seconds: float
    """Time for timed calls, after which no further call starts. The first always runs."""
    memory_bytes: int | None

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


Call = Callable[[NDArray[np.int64]], object]


def main() -> None:
    """Load, warm up, limit memory, measure peak memory in one call and the time of the others."""
    die_first()
    request = Request(**json.loads(sys.argv[1]))
    import torch

    torch.set_num_threads(request.threads)
    try:
        _measure(request)
    except Exception as error:
        say(**failure(error))


def _measure(request: Request) -> None:
    import torch

    from unmask.bench.memory import peak_extra_bytes

    device = torch.device(request.device)
    call, ran = loaded(request)
    short = min(IDS, request.max_tokens or IDS)
    call(np.array(request.ids[:short], dtype=np.int64))
    if request.length != short:
        ran.clear()
    resting = held_bytes(request.device)
    say(resting_bytes=resting)
    if request.memory_bytes is not None and resting is not None:
        if resting >= request.memory_bytes:
            held = f"{resting / 2**20:,.0f} MiB of {request.memory_bytes / 2**20:,.0f}"
            say(outcome="did not fit", note=f"the loaded model alone holds {held}")
            return
        allow_more(request.memory_bytes - resting, request.device)
    ids_N = np.resize(np.array(request.ids, dtype=np.int64), request.length)
    peak = peak_extra_bytes(lambda: call(ids_N), device)
    say(peak_bytes=peak, ran=sorted(ran))
    spent, done, clock = 0.0, 0, time.perf_counter
    while done < request.repeats or (spent < QUICK_SECONDS and done < QUICK_REPEATS):
        start = clock()
        call(ids_N)
        seconds = clock() - start
        say(seconds=seconds)
        spent, done = spent + seconds, done + 1
        if spent >= request.seconds:
            break
    say(outcome="measured", note="")


def loaded(request: Request) -> tuple[Call, set[str]]:
    """A function that runs a sequence of ids, and the set of kernels that its calls ran."""
    import torch

    from unmask.bench.scaling.settings import CHOSEN, is_peer

    if is_peer(request.way):
        from unmask.bench.peers import Source, by_name

        head = PooledVector(tuple(request.head["pooling"]), request.head["normalize"])
        source = Source(Path(request.folder), head, request.max_tokens, Path(request.work), request.device)
        return by_name(request.way).load(source).hidden, set()
    from unmask.models.load import load
    from unmask.text import PackedBatch

    kernel = None if request.way == CHOSEN else request.way
    model = load(request.folder, dtype=request.dtype, device=request.device, kernel=kernel)
    ran: set[str] = set()

    planned = model.encoder.plan

    def plan(*arguments: Any) -> Any:
        found = planned(*arguments)
        kernel = getattr(found, "kernel", None)
        ran.add("linear attention" if kernel is None else kernel.capability.name)
        return found

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
    from unmask.bench.speed.report import sentence_of
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
