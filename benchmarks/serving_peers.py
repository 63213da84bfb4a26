"""Our server beside a FastAPI service around sentence-transformers: texts a second that both sustain.

    python -m benchmarks.serving_peers [--dtype bfloat16] [--workers 2] [--rounds 2] [--seconds 8] [--p99 200]

Each server runs alone, in turn. Requests of one text of 4 to 120 words arrive at a fixed mean rate (Poisson),
whether or not earlier ones were answered; the rate grows by a quarter until the 99th percentile exceeds the
limit or a request fails. Needs `fastapi` and `sentence-transformers`, which are no dependencies of unmask.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.load_client import LoadClient, NoAnswer
from benchmarks.serving import drawn
from benchmarks.serving_trials import Seen, Server, arrivals, served

FIRST_RATE, GROWTH = 4.0, 1.25


def peer(model: str) -> None:
    """Run the service as its users write it: one function, which FastAPI calls in a pool of threads."""
    import fastapi
    import pydantic
    import uvicorn
    from sentence_transformers import SentenceTransformer

    class Asked(pydantic.BaseModel):
        inputs: list[str]

    app, encoder = fastapi.FastAPI(), SentenceTransformer(model, device="cpu")

    @app.post("/embed")
    def embed(asked: Asked) -> list[list[float]]:
        return encoder.encode(asked.inputs).tolist()

    with socket.create_server(("127.0.0.1", 0)) as open_socket:
        open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as where uvicorn opens it
        print(json.dumps({"url": f"http://127.0.0.1:{open_socket.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[open_socket])


@asynccontextmanager
async def peer_served(model: str) -> AsyncIterator[Server]:
    """The service in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serving_peers", "--peer", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 40)


async def sustained(server: Server, texts: list[str], seconds: float, limit_ms: float) -> tuple[float, float]:
    """The highest rate whose 99th percentile stays within the limit, and that percentile; 0 if none does."""
    best = (0.0, 0.0)
    async with LoadClient(server.port) as client:
        await warmed(client, texts)
        rate = FIRST_RATE
        while True:
            seen = Seen()
            await arrivals(client, seen, rate, seconds, texts)
            p99 = seen.p(99)
            if p99 is None or p99 > limit_ms or set(seen.codes) != {"200"}:
                return best
            best = (sum(seen.codes.values()) / seconds, p99)
            rate *= GROWTH


async def warmed(client: LoadClient, texts: list[str]) -> None:
    """Some requests that are not counted, once the server answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await client.post("/embed", {"inputs": texts[:8]}, 60)
            return
        except NoAnswer:
            await asyncio.sleep(0.1)


async def compare(given: argparse.Namespace) -> None:
    """Alternate both servers, and print medians and their ratio."""
    texts = drawn(400)
    rates: dict[str, list[float]] = {"unmask": [], "fastapi": []}
    for _ in range(given.rounds):
        for name, found in rates.items():
            ours = served(given, "--dtype", given.dtype, "--workers", str(given.workers))
            started = ours if name == "unmask" else peer_served(given.peer_model)
            async with started as server:
                rate, p99 = await sustained(server, texts, given.seconds, given.p99)
            found.append(rate)
            print(f"{name}: {rate:.1f} texts/s, p99 {p99:.0f} ms", file=sys.stderr, flush=True)
    own, theirs = (statistics.median(found) for found in rates.values())
    report = {"dtype": given.dtype, "workers": given.workers, "texts_per_second": rates}
    print(json.dumps(report | {"ratio": round(own / theirs, 2) if theirs else None}))


def main() -> None:
    """Compare, or run the peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="default")
    parser.add_argument("--peer-model", help="of sentence-transformers; default: the folder of --model")
    parser.add_argument("--dtype", default="float32", help="of unmask; the service computes in float32")
    parser.add_argument("--workers", type=int, default=1, help="of unmask, one thread each")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="at each rate")
    parser.add_argument("--p99", type=float, default=200.0, help="milliseconds")
    given = parser.parse_args()
    if given.peer:
        peer(given.peer)
        return
    if given.peer_model is None:
        from unmask.weights import find

        given.peer_model = str(find(given.model).folder)
    asyncio.run(compare(given))


if __name__ == "__main__":
    main()
