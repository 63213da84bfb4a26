"""Length scaling of other libraries.

``python -m benchmarks.peers.scaling FOLDER JSON`` measures a point, as `unmask.bench.scaling.point` does.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers import PEERS, Source, by_name
from unmask.bench.scaling.point import Call, Request, Tick, main, measure_in_subprocess
from unmask.bench.scaling.report import ScalingPoint
from unmask.bench.scaling.run import Measure
from unmask.spec import PooledVector


@contextmanager
def ways_measured() -> Iterator[tuple[tuple[str, ...], Measure]]:
    """The names of libraries that give states, and a function that measures a point of theirs, or of ours.

    What they convert is kept in a folder that is deleted when the block ends.
    """
    peers = {peer.name: peer for peer in PEERS if "documents" in peer.answers}
    with tempfile.TemporaryDirectory(prefix="unmask-scaling-") as work:

        def measure(request: Request, deadline: float, tick: Tick) -> ScalingPoint:
            peer = peers.get(request.way)
            if peer is None:
                return measure_in_subprocess(request, deadline, tick)
            reason = peer.unavailable()
            if reason is not None:
                return ScalingPoint(request.way, request.length, "refused", reason)
            return measure_in_subprocess(request, deadline, tick, ("benchmarks.peers.scaling", work))

        yield tuple(peers), measure


def loaded(request: Request) -> tuple[Call, set[str]]:
    """A function that runs a sequence of ids with the library; it runs no kernel of ours."""
    source = Source(
        Path(request.folder), PooledVector(), request.max_tokens, Path(sys.argv[1]), request.device
    )
    return by_name(request.way).load(source).hidden, set()


if __name__ == "__main__":
    main(loaded)
