"""The fixed work of `benchmarks.compare` in one commit: ``python compared_work.py REQUEST.json``.

It runs in a process of its own, with the commit's package first on the path. So it imports nothing else of
this repository, and of the package only what every commit has. It prints the processor seconds of each
workload.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def works(request: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """The workloads by name: mixed texts in one call, single queries, and texts that are classified."""
    import unmask

    if not Path(unmask.__file__).is_relative_to(request["root"]):
        raise SystemExit(f"{unmask.__file__} was imported, which is not the package in {request['root']}")
    embedder = unmask.load(request["embedder"])
    classifier = unmask.load(request["classifier"])
    texts, queries = request["texts"], request["queries"]
    return {
        "texts": lambda: embedder.embed(texts, truncation="end"),
        "query": lambda: [embedder.embed(query) for query in queries],
        "classify": lambda: classifier.classify(texts),
    }


def measured(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least processor seconds of each workload, of all threads; other processes only ever add to them."""
    best = dict.fromkeys(works, float("inf"))
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            if repeat:  # the first time is for caches
                best[name] = min(best[name], time.process_time() - start)
    return best


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(measured(works(content), content["repeats"])), flush=True)
