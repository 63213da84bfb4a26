"""What large jobs take: pretraining ModernBERT-base on GPUs, and embedding a billion passages.

python -m benchmarks.costs            # rewrite the tables of docs/costs.md

Every assumption is a constant here, and is named on the page. Replace them by your own figures.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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


def filled(page: str) -> str:
    """The page with its tables written anew."""
    made = {"pretraining": pretraining(), "embedding": embedding()}

    def written(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- {name}: written by benchmarks.costs -->\n{made[name]}<!-- end -->"

    return BLOCK.sub(written, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
