"""The peak memory of one engine in its own process: ``python -m unmask.measure.bench.in_subprocess JSON``.

It prints the memory used while working, above what the process uses after loading. If several engines shared
a process, each would hide the peaks of the others.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from unmask.measure.bench.workloads import Workload
from unmask.measure.memory import peak_extra_bytes
from unmask.measure.peers import Source, by_name
from unmask.model.spec import PooledVector

TIMEOUT_SECONDS = 1800


def peak_in_subprocess(engine: str, source: Source, workload: Workload, threads: int) -> int | None:
    """Peak bytes above the process after loading; None if the system does not report it or the process
    failed."""
    path = source.work / "workload.json"
    workload.write(path)
    request = {
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
    command = [sys.executable, "-m", "unmask.measure.bench.in_subprocess", json.dumps(request)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    answer: int | None = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Load the engine that the request names, run the workload, and print the bytes."""
    import torch

    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    given = request["source"]
    head = PooledVector(tuple(given["head"]["pooling"]), given["head"]["normalize"])
    source = Source(Path(given["folder"]), head, given["max_tokens"], Path(given["work"]), given["device"])
    engine = by_name(request["engine"]).load(source)
    workload = Workload.read(Path(request["workload"]))
    print(json.dumps(peak_extra_bytes(lambda: workload.run(engine), torch.device(source.device))))


if __name__ == "__main__":
    main()
