"""Two replicas behind the balancer of `deploy/`, under a constant load: stopped, killed and full.

    python -m benchmarks.serving_replicas [--model default] [--times 5] [--rate 30]

It starts two servers and Debian's nginx (`apt-get install nginx-light`) on free ports of this machine, with
`deploy/nginx.conf` as it is but for the ports. Each trial prints one JSON object, and the program ends with 1
if a promise was broken. A replica that is stopped and started again, or that is full, costs no request; those
in flight on one that is killed are each answered by the other one or with 503.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.load_client import LoadClient
from benchmarks.serving import drawn
from benchmarks.serving_trials import Seen, arrivals, ask

CONFIGURATION = Path(__file__).parents[1] / "deploy" / "nginx.conf"
Report = dict[str, Any]
Trial = Callable[["list[Replica]", LoadClient, argparse.Namespace], Awaitable[tuple[Report, bool]]]


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def balancer(ports: Sequence[int]) -> Iterator[tuple[str, Path]]:
    """Nginx with the configuration of `deploy/` before servers on these ports.

    Yields its address, and a file with a line for each request: what each replica answered that was asked.

    Raises:
        RuntimeError: nginx refuses the configuration.
    """
    command, port = shutil.which("nginx"), free_port()
    assert command is not None, "nginx is not installed"
    text = CONFIGURATION.read_text(encoding="utf-8")
    (line,) = re.findall("server model:8080.*;", text)
    servers = (line.replace("model:8080", f"127.0.0.1:{one}") for one in ports)
    text = text.replace(line, "\n    ".join(servers)).replace("listen 8080;", f"listen 127.0.0.1:{port};")
    with tempfile.TemporaryDirectory() as place:
        errors, asked = Path(place) / "error.log", Path(place) / "asked.log"
        kept = "".join(
            f"{kind}_temp_path {place}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.getuid() == 0 else ""  # the folder is the user's own
        logs = f"log_format asked $upstream_status; access_log {asked} asked; error_log {errors};"
        whole = f"{user} pid {place}/pid; events {{}} http {{ {logs} {kept}\n{text}}}"
        (Path(place) / "nginx.conf").write_text(whole, encoding="utf-8")
        arguments = ["-p", place, "-c", "nginx.conf", "-e", str(errors), "-g", "daemon off;"]
        process = subprocess.Popen([command, *arguments], stderr=subprocess.DEVNULL)
        try:
            while not _answers(port):
                if process.poll() is not None:
                    raise RuntimeError(errors.read_text())
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}", asked
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


class Replica:
    """A server on a port of its own, which can be started again.

    Args:
        model: what it serves.
    """

    def __init__(self, model: str) -> None:
        self.port, self._model = free_port(), model
        self.process = self.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it and wait until it answers."""
        arguments = ["-m", f"m={self._model}", "--port", str(self.port), "--threads", "1", "--json"]
        arguments += ["--truncate", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unmask", "serve", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["url"] == self.url
        return self.process

    def end(self, number: int) -> int:
        """End it with a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


async def under_load(
    client: LoadClient, rate: float, work: Callable[[], Awaitable[None]]
) -> tuple[Seen, bool]:
    """Requests at a fixed rate while something is done, and two seconds before and after it."""
    seen, texts, done = Seen(), drawn(64), asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            await arrivals(client, seen, rate, 1, texts)

    task = asyncio.create_task(load())
    await asyncio.sleep(2)
    await work()
    await asyncio.sleep(2)
    done.set()
    await task
    return seen, set(seen.codes) == {"200"}


async def stop(replicas: list[Replica], client: LoadClient, given: argparse.Namespace) -> tuple[Report, bool]:
    """Each replica in turn is stopped by SIGTERM and started again."""
    exits: list[int] = []

    async def work() -> None:
        for replica in replicas * given.times:
            exits.append(await asyncio.to_thread(replica.end, signal.SIGTERM))
            await asyncio.sleep(1)
            await asyncio.to_thread(replica.start)

    seen, good = await under_load(client, given.rate, work)
    return _report(seen) | {"stops": len(exits), "exits": sorted(set(exits))}, good and set(exits) == {0}


async def kill(replicas: list[Replica], client: LoadClient, given: argparse.Namespace) -> tuple[Report, bool]:
    """Each replica in turn is killed with 32 requests in flight and started again."""
    flying, text = Seen(), drawn(64)

    async def work() -> None:
        for replica in replicas * given.times:
            tasks = [asyncio.create_task(ask(client, flying, [one])) for one in text[:32]]
            await asyncio.sleep(0.05)
            # All its processes, as when a machine ends: workers would otherwise see that it is gone.
            await asyncio.to_thread(replica.end, signal.SIGKILL)
            await asyncio.gather(*tasks)
            await asyncio.to_thread(replica.start)

    seen, _ = await under_load(client, given.rate, work)
    good = set(seen.codes) | set(flying.codes) <= {"200", "503"}
    return _report(seen) | {"kills": 2 * given.times, "in_flight": dict(flying.codes)}, good


async def full(replicas: list[Replica], client: LoadClient, given: argparse.Namespace) -> tuple[Report, bool]:
    """One replica has a short queue that others keep full, so that it refuses what the balancer sends it."""
    await asyncio.to_thread(replicas[0].end, signal.SIGTERM)
    await asyncio.to_thread(replicas[0].start, "--queued-tokens", "1024")
    done, texts = asyncio.Event(), drawn(64)

    async def fill(text: str) -> None:
        async with LoadClient(replicas[0].port) as own:
            while not done.is_set():
                await ask(own, Seen(), [text])
                await asyncio.sleep(0.02)  # a refusal comes at once

    tasks = [asyncio.create_task(fill(text)) for text in texts]
    seen, good = await under_load(client, given.rate / 2, lambda: asyncio.sleep(2 * given.times))
    done.set()
    await asyncio.gather(*tasks)
    return _report(seen), good


def _report(seen: Seen) -> Report:
    return {"ended": dict(seen.codes), "p50_ms": seen.p(50), "p99_ms": seen.p(99)}


TRIALS: dict[str, Trial] = {"stop": stop, "kill": kill, "full": full}


def passed_on(asked: Path) -> Counter[str]:
    """How many requests were sent to both replicas, by what these answered (502: nothing)."""
    return Counter(line for line in asked.read_text().splitlines() if "," in line)


async def run(given: argparse.Namespace) -> bool:
    """Run the trials; whether every promise was kept."""
    kept = True
    replicas = [Replica(given.model) for _ in range(2)]
    try:
        with balancer([one.port for one in replicas]) as (url, asked):
            async with LoadClient(int(url.rpartition(":")[2])) as client:
                for name in given.trials or TRIALS:
                    load = round(os.getloadavg()[0], 1)
                    before = passed_on(asked)
                    report, good = await TRIALS[name](replicas, client, given)
                    report["passed_on"] = dict(passed_on(asked) - before)
                    # Without a request that one replica did not answer, the trial has tried nothing.
                    good = good and bool(report["passed_on"])
                    print(json.dumps({"trial": name, "kept": good, "load": load} | report), flush=True)
                    kept = kept and good
    finally:
        for one in replicas:
            one.end(signal.SIGTERM)
    return kept


def main() -> None:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trials", nargs="*", choices=[*TRIALS, []])
    parser.add_argument("--model", default="default")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rate", type=float, default=30.0)
    sys.exit(not asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
