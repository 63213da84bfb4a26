"""Trials of a running server: overload, a soak, bad clients, killed workers, stops under load.

    python -m benchmarks.serving_trials kill --times 50
    python -m benchmarks.serving_trials stop --times 50
    python -m benchmarks.serving_trials overload --seconds 120
    python -m benchmarks.serving_trials soak --seconds 1800
    python -m benchmarks.serving_trials clients --seconds 30

Each trial starts its own server on a free port of this machine, prints one JSON object with what it measured,
and ends with 1 if a promise was broken. Arrivals are open: requests come at a fixed rate, whether or not
earlier ones were answered. `--model` takes what `unmask serve` takes.
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
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.load_client import LoadClient, NoAnswer
from benchmarks.serving import drawn

Report = dict[str, Any]


@dataclass
class Server:
    """A server process and how to reach it."""

    url: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        """Its port on this machine."""
        return int(self.url.rpartition(":")[2])

    def processes(self) -> list[psutil.Process]:
        """The server, the parent of workers, and the workers."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def workers(self) -> list[psutil.Process]:
        """The processes that run models."""
        (parent,) = psutil.Process(self.process.pid).children()
        return [one for one in parent.children() if one.status() != psutil.STATUS_ZOMBIE]

    def held(self) -> tuple[int, int, int]:
        """Bytes (proportional set size), file descriptors and threads of all processes."""
        found = self.processes()
        return (
            sum(one.memory_full_info().pss for one in found),
            sum(one.num_fds() for one in found),
            sum(one.num_threads() for one in found),
        )


@asynccontextmanager
async def served(given: argparse.Namespace, *options: str) -> AsyncIterator[Server]:
    """A server of the model, stopped at the end."""
    arguments = ["-m", f"m={given.model}", "--port", "0", "--threads", "1", "--json", *options]
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Server(json.loads(process.stdout.readline())["url"], process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 40)


@dataclass
class Seen:
    """How requests ended, and how long they took."""

    codes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    without_retry_after: int = 0

    def add(self, code: str, seconds: float) -> None:
        """Count one request."""
        self.codes[code] += 1
        self.seconds.setdefault(code, []).append(seconds)

    def p(self, percent: int, code: str = "200") -> float | None:
        """A percentile of the milliseconds of requests with a code."""
        found = self.seconds.get(code, [])
        return round(statistics.quantiles(found, n=100)[percent - 1] * 1e3, 1) if len(found) > 1 else None


async def ask(client: LoadClient, seen: Seen, texts: list[str], limit: float = 70.0) -> None:
    """One request, counted by its status or by what ended its connection."""
    began = time.perf_counter()
    try:
        status, headers, _ = await client.post("/embed", {"inputs": texts}, limit)
        code = str(status)
        seen.without_retry_after += code == "429" and "retry-after" not in headers
    except NoAnswer as error:
        code = str(error)
    seen.add(code, time.perf_counter() - began)


async def gauge(client: LoadClient, name: str) -> float:
    """A number of ``/metrics``."""
    _, _, page = await client.get("/metrics")
    return float(page.decode().partition(f"\n{name} ")[2].split("\n")[0])


async def is_ready(client: LoadClient) -> bool:
    """Whether ``/ready`` is 200."""
    return (await client.get("/ready"))[0] == 200


async def arrivals(
    client: LoadClient, seen: Seen, per_second: float, seconds: float, texts: list[str]
) -> None:
    """Requests of one text each at a fixed mean rate (Poisson), until all are answered.

    Where this process cannot send as many, it sends what it can for that time.
    """
    draw, tasks, began = random.Random(0), set(), time.monotonic()
    due = began
    while max(due, time.monotonic()) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(ask(client, seen, [draw.choice(texts)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(per_second)
    await asyncio.gather(*tasks)


async def capacity(server: Server, texts: list[str], seconds: float = 5.0) -> float:
    """Requests of one text a second that 32 waiting clients get answered."""
    seen, until = Seen(), time.monotonic() + seconds

    async def one(client: LoadClient) -> None:
        while time.monotonic() < until:
            await ask(client, seen, [random.choice(texts)])

    async with LoadClient(server.port) as client:
        began = time.monotonic()
        await asyncio.gather(*(one(client) for _ in range(32)))
        return seen.codes["200"] / (time.monotonic() - began)


async def ready_after(server: Server) -> float:
    """Seconds until `/ready` is 200 and a text is embedded."""
    began = time.monotonic()
    async with LoadClient(server.port) as client:
        while time.monotonic() < began + 60:
            seen = Seen()
            await ask(client, seen, ["ready"])
            if seen.codes["200"] and await is_ready(client):
                break
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def replaced(server: Server, before: set[int]) -> float:
    """Seconds until other workers than these run and `/ready` is 200."""
    began = time.monotonic()
    async with LoadClient(server.port) as client:
        while time.monotonic() < began + 60:
            now = {one.pid for one in server.workers()}
            if now and not now & before and await is_ready(client):
                break
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def kill(given: argparse.Namespace) -> tuple[Report, bool]:
    """The worker is killed with 64 requests in flight."""
    texts = [text[:60] for text in drawn(64)]
    seen, waits, draw = Seen(), [], random.Random(1)
    async with served(given) as server, LoadClient(server.port, kept=0) as client:
        for _ in range(given.times):
            tasks = [asyncio.create_task(ask(client, seen, [text])) for text in texts]
            await asyncio.sleep(draw.uniform(0.05, 0.5))
            workers = server.workers()
            for worker in workers:
                worker.kill()
            waits.append(await replaced(server, {one.pid for one in workers}))
            await asyncio.gather(*tasks)
    good = set(seen.codes) <= {"200", "503"} and max(waits) <= 10
    return {"kills": len(waits), "ended": dict(seen.codes), "ready_max_s": round(max(waits), 2)}, good


async def stop(given: argparse.Namespace) -> tuple[Report, bool]:
    """SIGTERM with 64 requests accepted: each is answered."""
    seen, waits, codes, texts = Seen(), [], Counter(), drawn(64)
    for _ in range(given.times):
        async with served(given) as server, LoadClient(server.port, kept=0) as client:
            tasks = [asyncio.create_task(ask(client, seen, [text])) for text in texts]
            while True:
                opened = await gauge(client, "unmask_requests_open")
                if opened + sum(task.done() for task in tasks) >= len(tasks):
                    break
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*tasks)
            codes[await asyncio.to_thread(server.process.wait, 40)] += 1
            waits.append(time.monotonic() - began)
    good = set(seen.codes) == {"200"} and set(codes) == {0}
    return {"ended": dict(seen.codes), "exits": dict(codes), "stop_max_s": round(max(waits), 2)}, good


async def overload(given: argparse.Namespace) -> tuple[Report, bool]:
    """Ten times as many requests as the server can answer."""
    texts = drawn(200)
    async with served(given, "--queued-tokens", "16384") as server, LoadClient(server.port) as client:
        peak = await capacity(server, texts)
        idle_bytes = server.held()[0]
        await arrivals(client, Seen(), 10 * peak, given.seconds / 6, texts)
        before = server.held()[0]
        seen, began = Seen(), time.monotonic()
        await arrivals(client, seen, 10 * peak, given.seconds, texts)
        seconds = time.monotonic() - began
        again = await ready_after(server)
        after = server.held()[0]
    report = {
        "capacity_per_s": round(peak, 1),
        "sent_of_capacity": round(sum(seen.codes.values()) / seconds / peak, 1),
        "ended": dict(seen.codes),
        "goodput_of_capacity": round(seen.codes["200"] / seconds / peak, 2),
        "refused_p99_ms": seen.p(99, "429"),
        "refused_without_retry_after": seen.without_retry_after,
        "memory_growth": round(after / before - 1, 3),
        "memory_growth_from_idle": round(after / idle_bytes - 1, 3),
        "normal_after_s": round(again, 2),
    }
    good = set(seen.codes) <= {"200", "429"} and report["goodput_of_capacity"] >= 0.9 and again <= 10
    refused = report["refused_p99_ms"]
    return report, good and not seen.without_retry_after and (refused is None or refused <= 100)


async def soak(given: argparse.Namespace) -> tuple[Report, bool]:
    """80 % of what the server can answer, for long."""
    texts, seen = drawn(200), Seen()
    async with served(given) as server, LoadClient(server.port) as client:
        peak = await capacity(server, texts)
        await arrivals(client, Seen(), 0.8 * peak, min(60.0, given.seconds / 6), texts)
        before = server.held()
        await arrivals(client, seen, 0.8 * peak, given.seconds, texts)
        await asyncio.sleep(6)  # idle connections are closed after 5
        after = server.held()
    report = {
        "capacity_per_s": round(peak, 1),
        "ended": dict(seen.codes),
        "p50_ms": seen.p(50),
        "p99_ms": seen.p(99),
        "memory_growth": round(after[0] / before[0] - 1, 3),
        "files": [before[1], after[1]],
        "threads": [before[2], after[2]],
    }
    return report, set(seen.codes) == {"200"} and after[0] <= 1.05 * before[0]


async def idle(server: Server) -> None:
    """1,000 connections that send nothing; the server closes them, and each is opened again."""

    async def one(wait: float) -> None:
        await asyncio.sleep(wait)  # not all at the same moment
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with suppress(OSError):
                await reader.read()  # the server closes what sends no head for 10 seconds
            writer.close()

    await asyncio.gather(*(one(number / 500) for number in range(1000)))


async def slow(server: Server) -> None:
    """200 clients that write one byte of a request a second."""
    head = b"POST /embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n"

    async def one() -> None:
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                for at in range(len(head)):
                    writer.write(head[at : at + 1])
                    await writer.drain()
                    await asyncio.sleep(1)
            except OSError:
                pass
            finally:
                writer.close()

    await asyncio.gather(*(one() for _ in range(200)))


async def leaving(client: LoadClient, rate: float, texts: list[str]) -> None:
    """Requests whose clients leave before the answer."""
    draw = random.Random(2)
    while True:
        limit = draw.uniform(0.001, 0.05)
        await asyncio.gather(ask(client, Seen(), [draw.choice(texts)], limit), asyncio.sleep(1 / rate))


async def clients(given: argparse.Namespace) -> tuple[Report, bool]:
    """1,000 idle connections, 200 that write a byte a second, and as many that leave as stay."""
    texts, report, good = drawn(200), {}, True
    async with served(given) as server, LoadClient(server.port) as client:
        rate = 0.3 * await capacity(server, texts)

        async def healthy(name: str, beside: Coroutine[Any, Any, None] | None) -> float | None:
            seen = Seen()
            task = asyncio.create_task(beside) if beside else None
            await arrivals(client, seen, rate, given.seconds, texts)
            if task:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            report[name] = {"ended": dict(seen.codes), "p99_ms": seen.p(99)}
            return seen.p(99)

        alone = await healthy("alone", None)
        others = {"idle": idle(server), "slow": slow(server), "leaving": leaving(client, rate, texts)}
        for name, beside in others.items():
            p99 = await healthy(name, beside)
            good = good and set(report[name]["ended"]) == {"200"}
            report[name]["p99_ratio"] = round(p99 / alone, 2) if p99 and alone else None
        await asyncio.sleep(1)
        for one in ("unmask_queue_tokens", "unmask_requests_open"):
            report[one] = await gauge(client, one)
            good = good and report[one] == 0
    return report, good


TRIALS = {"kill": kill, "stop": stop, "overload": overload, "soak": soak, "clients": clients}


async def stoppable(trial: Coroutine[Any, Any, tuple[Report, bool]]) -> tuple[Report, bool]:
    """A trial that stops its server when it is itself stopped by SIGTERM."""
    task = asyncio.ensure_future(trial)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main() -> None:
    """Run one trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--model", default="default")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    report, good = asyncio.run(stoppable(TRIALS[given.trial](given)))
    print(json.dumps({"trial": given.trial, "kept": good, "load": round(load, 1)} | report))
    sys.exit(not good)


if __name__ == "__main__":
    main()
