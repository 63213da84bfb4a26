"""What large jobs take: pretraining ModernBERT-base on GPUs, and embedding and searching a billion passages.

python -m benchmarks.costs            # rewrite the tables of docs/costs.md

Every assumption is a constant here, and is named on the page. Replace them by your own figures.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.families import published_config
from unmask.training.run.flops import Work
from unmask.weights.build import on_meta
from unmask.weights.write.new_checkpoint import check_config

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "costs.md"
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+): written by benchmarks\.costs -->\n.*?<!-- end -->", re.DOTALL)

ARCHITECTURE = "answerdotai/ModernBERT-base"
PEAK = 989e12
"""Operations a second of one H100 (SXM) in bfloat16, dense, as its maker states."""
SHARES = (0.25, 0.40)
"""Of that peak, what training is assumed to reach: low and high."""
SCALING = {8: 0.95, 64: 0.88}
"""GPUs -> the share of their sum that communication leaves, assumed."""
GPU_PRICE = 2.50
"""Dollars for one GPU and hour: an example."""

PASSAGES, PASSAGE_TOKENS, WIDTH = 1_000_000_000, 128, 384
"""How many, of how many tokens, and the numbers of a vector."""
RATES = {"float32": 7_700, "bfloat16": 13_408, "int8": 19_151}
"""Tokens a second of two cores with "default", measured: docs/log/2026.md."""
CORE_PRICE = 0.04
"""Dollars for one core and hour: an example."""
MACHINES = (1, 100)

SEARCHERS, CORES = 20, 32
"""Machines that each search an equal part of the passages, and the cores of one."""
SCAN = 6.8e-9
"""Core-seconds for the code of one bit of one passage (48 bytes), measured: docs/log/2026.md."""
CANDIDATES, SCORING = 512, 22e-6
"""Passages that a machine scores by their tokens; core-seconds for 132 vectors of 2 bits, measured."""
VECTORS, VECTOR_BYTES = 132, 34 + 8
"""Of a passage: vectors of tokens, and bytes of one with its place in the text."""
QUERY = 2e-3
"""Seconds for encoding the query with "default", measured."""
NETWORK, DISK = 1e-3, 5e-3
"""Seconds for a message there and back, and for the candidates' vectors from a local disk, assumed."""
SPREAD = 0.2
"""Deviation of the logarithm of a machine's time, assumed."""
FIRST_BYTE, STORE_SPREAD, STORE_BANDWIDTH = 30e-3, 0.6, 1e9
"""Of a read from an object store: median seconds, deviation of the logarithm; bytes a second; assumed."""
QUERIES = 20_000
"""That are simulated."""


@dataclass(frozen=True)
class Phase:
    """A phase of pretraining, as its run file says."""

    number: int
    length: int
    """Tokens of the longest text."""
    tokens: float
    operations: float
    """By token, all texts being of that length."""

    @classmethod
    def of(cls, number: int) -> "Phase":
        """Read the recipe of a published phase."""
        with (ROOT / "recipes" / "modernbert" / f"published-{number}.toml").open("rb") as file:
            run = tomllib.load(file)
        batch, length = run["batch"], run["data"]["sources"][0]["max_tokens"] + 2
        less = batch["tokens"] - batch.get("start_tokens", batch["tokens"])
        tokens = run["steps"] * (batch["tokens"] - less * batch.get("ramp_share", 0.0) / 2)
        there = {**published_config(ARCHITECTURE), "architectures": ["ModernBertForMaskedLM"]}
        spec = check_config({**there, **run["model"]["config"]})
        one = Work(on_meta(spec)).of(np.array([length]), round(run["objective"]["rate"] * length))
        return cls(number, length, tokens, one / length)


def pretraining() -> str:
    """The table of pretraining: GPU hours, days and dollars of each phase and of all."""
    every = [Phase.of(number) for number in (1, 2, 3)]
    lines = ["| phase | tokens | operations a token | hours of one GPU |", "|---|---:|---:|---:|"]
    total = [0.0, 0.0]
    for one in every:
        hours = [one.tokens * one.operations / PEAK / share / 3600 for share in sorted(SHARES, reverse=True)]
        total = [before + more for before, more in zip(total, hours, strict=True)]
        lines.append(
            f"| {one.number}, texts of {one.length:,} | {one.tokens / 1e9:,.0f} billion | "
            f"{one.operations / 1e9:.2f} billion | {hours[0]:,.0f} to {hours[1]:,.0f} |"
        )
    lines += ["", "| GPUs | days | dollars |", "|---|---:|---:|"]
    for count, left in SCALING.items():
        low, high = (hours / count / left / 24 for hours in total)
        dollars = [hours / left * GPU_PRICE for hours in total]
        lines.append(f"| {count} | {low:,.1f} to {high:,.1f} | {dollars[0]:,.0f} to {dollars[1]:,.0f} |")
    return "\n".join([*lines, ""])


def embedding() -> str:
    """The table of a billion passages: days and dollars on two cores and on many such machines."""
    tokens = PASSAGES * PASSAGE_TOKENS
    columns = " | ".join(f"days, {count} of them" for count in MACHINES)
    lines = [
        f"| two cores in | tokens a second | {columns} | dollars |",
        "|---|---:|" + "---:|" * (len(MACHINES) + 1),
    ]
    for dtype, rate in RATES.items():
        days = tokens / rate / 86_400
        each = " | ".join(f"{days / count:,.1f}" for count in MACHINES)
        lines.append(f"| {dtype} | {rate:,} | {each} | {2 * days * 24 * CORE_PRICE:,.0f} |")
    lines += ["", "| vectors | bytes of each | terabytes |", "|---|---:|---:|"]
    for name, size in (("float32", 4 * WIDTH), ("binary", WIDTH // 8)):
        lines.append(f"| {name} | {size:,} | {PASSAGES * size / 1e12:.2f} |")
    return "\n".join([*lines, ""])


def machine_seconds(draw: np.random.Generator, *, from_store: bool = False) -> NDArray[np.float64]:
    """How long each machine is busy with each query, and then waits for vectors: (2, queries, machines)."""
    shape = (QUERIES, SEARCHERS)
    busy = PASSAGES / SEARCHERS * SCAN / CORES + CANDIDATES * SCORING
    waits = np.full(shape, DISK)
    if from_store:
        # All candidates are read at once; the last one decides. The largest of n draws has the n-th root of a
        # uniform number as its rank.
        ranks = draw.random(shape) ** (1 / CANDIDATES)
        normal = NormalDist()
        waits = FIRST_BYTE * np.exp(STORE_SPREAD * np.vectorize(normal.inv_cdf)(ranks))
    return np.stack((busy * draw.lognormal(0, SPREAD, shape), waits))


def response_times(load: float, *, doubled: bool = False, from_store: bool = False) -> NDArray[np.float64]:
    """Seconds of each simulated query, which the slowest machine decides.

    Queries arrive at random (Poisson), and each machine answers one after another.

    Args:
        load: the share of the time in which a machine is busy; 0 lets queries come one by one.
        doubled: the first machine answers for a failed one as well.
        from_store: vectors of tokens are read from an object store.
    """
    draw = np.random.default_rng(0)
    busy, waits = machine_seconds(draw, from_store=from_store)
    if doubled:
        busy[:, 0] *= 2
    gaps = draw.exponential(1, QUERIES) * (busy[:, -1].mean() / load if load else np.inf)
    queued, total = np.zeros(SEARCHERS), np.empty(QUERIES)
    for query in range(QUERIES):
        queued = np.maximum(0, queued - gaps[query]) + busy[query]
        total[query] = (queued + waits[query]).max()
    return QUERY + NETWORK + total


def searching() -> str:
    """The tables of searching: what one machine holds, response times, and dollars."""
    part = PASSAGES / SEARCHERS
    stored = part * VECTORS * VECTOR_BYTES
    rate = 0.5 / (part * SCAN / CORES + CANDIDATES * SCORING)
    price = SEARCHERS * CORES * CORE_PRICE
    lines = [
        f"| one of {SEARCHERS} machines | |",
        "|---|---:|",
        f"| passages | {part / 1e6:,.0f} million |",
        f"| codes of one bit, in memory | {part * WIDTH / 8 / 1e9:,.1f} GB |",
        f"| vectors of tokens, 2 bits, on its disk | {stored / 1e9:,.0f} GB |",
        f"| read again from an object store after a failure | {stored / STORE_BANDWIDTH / 60:,.0f} minutes |",
        f"| queries a second at half load | {rate:,.0f} |",
        f"| all machines, dollars an hour | {price:,.1f} |",
        f"| dollars for a million queries at half load | {price / 3600 / rate * 1e6:,.0f} |",
        "",
        "| simulated | p50, ms | p99, ms |",
        "|---|---:|---:|",
    ]
    situations: dict[str, dict[str, Any]] = {
        "queries one by one": {"load": 0.0},
        "half load": {"load": 0.5},
        "two copies of each part (40 machines), each at a quarter": {"load": 0.25},
        "the same, one machine failed": {"load": 0.25, "doubled": True},
        "half load, vectors of tokens from an object store": {"load": 0.5, "from_store": True},
    }
    for name, arguments in situations.items():
        middle, late = np.percentile(response_times(**arguments), (50, 99)) * 1e3
        lines.append(f"| {name} | {middle:,.0f} | {late:,.0f} |")
    return "\n".join([*lines, ""])


def filled(page: str) -> str:
    """The page with its tables written anew."""
    tables = {"pretraining": pretraining(), "embedding": embedding(), "searching": searching()}

    def written(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- {name}: written by benchmarks.costs -->\n{tables[name]}<!-- end -->"

    return BLOCK.sub(written, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
