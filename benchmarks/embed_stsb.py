"""Embed the sentences of STS-B with `unmask` and with `sentence-transformers`, in turn, and compare.

Both read the same folder of weights, both use their defaults, both start from a list of strings. Each
round times one and then the other, so that a machine that speeds up or slows down does so for both;
the ratio is taken round by round and its median reported.

    python benchmarks/embed_stsb.py --data ../shared/data [--rounds 5] [--json FILE]
"""

import argparse
import csv
import json
import lzma
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import unmask


def sentences(data: Path) -> list[str]:
    """Every distinct sentence of STS-B, train, dev and test, in order of first appearance."""
    found: dict[str, None] = {}
    for part in ("train", "dev", "test"):
        with lzma.open(data / "glue" / "STS-B" / f"{part}.tsv.xz", "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                found[row["sentence1"]] = None
                found[row["sentence2"]] = None
    return list(found)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()

    torch.set_num_threads(2)
    texts = sentences(options.data)
    ours = unmask.load("default")
    theirs = SentenceTransformer(str(ours.checkpoint.source.folder), device="cpu")
    tokens = sum(len(encoding) for encoding in ours.encode(texts))

    difference = np.abs(ours.embed(texts) - theirs.encode(texts)).max()
    rounds = []
    for _ in range(options.rounds):
        rounds.append((seconds(lambda: ours.embed(texts)), seconds(lambda: theirs.encode(texts))))
    our_median, their_median = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = [them / us for us, them in rounds]
    figures = {
        "texts": len(texts),
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "largest_difference": float(difference),
        "unmask_seconds_median": our_median,
        "sentence_transformers_seconds_median": their_median,
        "unmask_tokens_per_second": tokens / our_median,
        "sentence_transformers_tokens_per_second": tokens / their_median,
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    for name, value in figures.items():
        print(f"{name:42s} {value:,.4g}" if isinstance(value, float) else f"{name:42s} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
