"""What the server costs beside direct calls: one text at a time, and many clients beside one batch.

    python -m benchmarks.serving [--model default] [--texts 400] [--clients 16]

The server runs as a process of its own with one thread of torch, and clients share one thread of this
process, with one connection each. Texts have 4 to 120 words. Rounds of the direct call and of the server
alternate, and medians are printed.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx
import numpy as np
import torch

import unmask
from benchmarks.load_client import LoadClient

WORDS = (
    "the",
    "river",
    "bank",
    "was",
    "muddy",
    "and",
    "a",
    "small",
    "boat",
    "lay",
    "in",
    "water",
    "near",
    "its",
)


def drawn(count: int, seed: int = 0) -> list[str]:
    """Texts of mixed lengths."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 120))) for _ in range(count)]


async def single(model: unmask.Model, port: int, text: str, count: int) -> None:
    """Median and 95th percentile of one text at a time, alternating."""
    direct, served = [], []
    async with LoadClient(port) as client:
        for _ in range(count):
            began = time.perf_counter()
            model.embed([text])
            direct.append(time.perf_counter() - began)
            began = time.perf_counter()
            await client.post("/v1/embeddings", {"input": text, "encoding_format": "base64"})
            served.append(time.perf_counter() - began)
    tokens = len(model.tokenize([text])[0])
    for name, seconds in (("direct", direct), ("served", served)):
        p95 = statistics.quantiles(seconds, n=20)[-1]
        print(
            f"one text of {tokens} tokens, {name}: p50 {statistics.median(seconds) * 1e3:.2f} ms, "
            f"p95 {p95 * 1e3:.2f} ms"
        )
    added = statistics.median(b - a for a, b in zip(direct, served, strict=True))
    print(f"added by the server, median of pairs: {added * 1e3:.2f} ms")


async def many(port: int, texts: Sequence[str], clients: int, per_request: int) -> tuple[float, list[float]]:
    """Seconds for all texts, and those of each request, from clients that each wait for their answers."""
    parts = [texts[at : at + per_request] for at in range(0, len(texts), per_request)]
    waits: list[float] = []

    async def client(session: LoadClient) -> None:
        while parts:
            part = parts.pop()
            began = time.perf_counter()
            status, _, answer = await session.post(
                "/v1/embeddings", {"input": part, "encoding_format": "base64"}, 300
            )
            assert status == 200, answer[:200]
            waits.append(time.perf_counter() - began)

    async with LoadClient(port) as session:
        began = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        return time.perf_counter() - began, waits


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, texts = unmask.load(given.model), drawn(given.texts)
    tokens = sum(map(len, model.tokenize(texts)))
    print(f"load {os.getloadavg()[0]:.1f}; {len(texts)} texts, {tokens} tokens, {given.clients} clients")
    arguments = ["-m", f"m={given.model}", "--port", "0", "--threads", "1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        try:
            found = httpx.post(f"{url}/embed", json={"inputs": texts[:8]}, timeout=60).json()
            difference = np.abs(np.array(found) - model.embed(texts[:8], normalize=True)).max()
            print(f"largest difference from the direct call: {difference:.1e}")
            port = int(url.rpartition(":")[2])
            for text in ("a small boat on the river", texts[0]):
                asyncio.run(single(model, port, text, given.singles))
            ratios: dict[int, list[float]] = {1: [], 16: []}
            for _ in range(given.rounds):
                for per_request, found_ratios in ratios.items():
                    began = time.perf_counter()
                    model.embed(texts)
                    direct = time.perf_counter() - began
                    seconds, waits = asyncio.run(many(port, texts, given.clients, per_request))
                    found_ratios.append(direct / seconds)
                    print(
                        f"{per_request} texts a request: direct {tokens / direct:.0f} tokens/s, served "
                        f"{tokens / seconds:.0f} tokens/s, ratio {direct / seconds:.2f}, "
                        f"request p50 {statistics.median(waits) * 1e3:.0f} ms, max {max(waits) * 1e3:.0f} ms"
                    )
            for per_request, found_ratios in ratios.items():
                print(f"{per_request} texts a request, median ratio {statistics.median(found_ratios):.2f}")
        finally:
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
