"""One engine in its own process: ``python -m benchmarks.peers.in_subprocess JSON``.

It prints the memory used while working, above what the process uses after loading; or how it started: its
processor time and its peak memory up to the first answer. If several engines shared a process, each would
hide the peaks of the others.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import Source, by_name
from benchmarks.peers.workloads import Workload
from unmask.bench.memory import peak_extra_bytes, status_bytes
from unmask.engines.native.threads import set_thread_count
from unmask.spec import PooledVector

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class Start:
    """A process from its start to its first answer."""

    wall_seconds: float
    """Until the process had answered and was gone."""
    processor_seconds: float
    """Of all threads."""
    peak_bytes: int | None
    """Resident memory; None if the system does not report it."""


def peak_in_subprocess(engine: str, source: Source, workload: Workload, threads: int) -> int | None:
    """Peak bytes above the process after loading; None if the system does not report it or the process
    failed."""
    answer = _answer("peak", engine, source, workload, threads)
    return None if answer is None else answer["bytes"]


def start_in_subprocess(engine: str, source: Source, workload: Workload, threads: int) -> Start | None:
    """Start a process that imports the library, loads the model and answers once; None if it failed."""
    answer = _answer("start", engine, source, workload, threads)
    if answer is None:
        return None
    return Start(answer["wall_seconds"], answer["processor_seconds"], answer["bytes"])


def _answer(
    asked: str, engine: str, source: Source, workload: Workload, threads: int
) -> dict[str, Any] | None:
    """What the process prints, and its wall time; None if it failed."""
    path = source.work / "workload.json"
    workload.write(path)
    request = {
        "asked": asked,
        "engine": engine,
        "threads": threads,
        "workload": str(path),
        "source": {
            "folder": str(source.folder),
            "head": asdict(source.head),
            "max_tokens": source.max_tokens,
            "work": str(source.work),
            "device": source.device,
        },
    }
    command = [sys.executable, "-m", "benchmarks.peers.in_subprocess", json.dumps(request)]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    seconds = time.perf_counter() - begin
    return {**json.loads(done.stdout.splitlines()[-1]), "wall_seconds": seconds}


def main() -> None:
    """Load the engine that the request names, run the workload, and print what was asked."""
    request = json.loads(sys.argv[1])
    set_thread_count(request["threads"])
    given = request["source"]
    head = PooledVector(tuple(given["head"]["pooling"]), given["head"]["normalize"])
    source = Source(Path(given["folder"]), head, given["max_tokens"], Path(given["work"]), given["device"])
    engine = by_name(request["engine"]).load(source)
    workload = Workload.read(Path(request["workload"]))
    if request["asked"] == "start":
        workload.run(engine)
        # Not from getrusage, which on Linux begins with the peak of the process that started this one.
        answer = {"processor_seconds": time.process_time(), "bytes": status_bytes("VmHWM")}
    else:
        import torch

        extra = peak_extra_bytes(lambda: workload.run(engine), torch.device(source.device))
        answer = {"bytes": extra}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # what libraries do at the end of a process is no part of its start


if __name__ == "__main__":
    main()
