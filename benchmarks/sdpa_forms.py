"""Three ways to run SDPA over a packed pass: a call per distinct length, per sequence, or padded with a mask.

Shapes are those of all-MiniLM-L6-v2 (12 heads of 32) on real sentence lengths; forms take turns.

    python benchmarks/sdpa_forms.py --data ../shared/data
"""

import argparse
import csv
import lzma
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import unmask
from unmask.kernels import AttentionBias
from unmask.kernels.sdpa import SdpaKernel
from unmask.spec import FullAttention
from unmask.text import SequenceLayout, token_budget_batches

HEADS, WIDTH = 12, 32


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


def per_length(q, k, v, layout):
    """The kernel of the package."""
    kernel = SdpaKernel()
    plan = kernel.plan(layout, FullAttention(), q.device)
    return kernel.attend(q, k, v, plan, pattern=FullAttention(), bias=AttentionBias()).o_THK


def per_sequence(q, k, v, layout):
    """One call a sequence."""
    out = torch.empty_like(q)
    for sequence in range(layout.sequence_count):
        rows = layout.rows(sequence)
        parts = (x[rows].transpose(0, 1)[None] for x in (q, k, v))
        out[rows] = scaled_dot_product_attention(*parts)[0].transpose(0, 1)
    return out


def padded(q, k, v, layout):
    """One call with a padding mask, padding and unpadding counted."""
    longest = int(layout.lengths.max())
    at = torch.from_numpy(layout.sequence_of_T), torch.from_numpy(layout.positions_T)
    mask = torch.zeros(layout.sequence_count, 1, 1, longest, dtype=torch.bool)
    mask[at[0], 0, 0, at[1]] = True
    parts = []
    for x in (q, k, v):
        wide = x.new_zeros(layout.sequence_count, longest, HEADS, WIDTH)
        wide[at] = x
        parts.append(wide.transpose(1, 2))
    return scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2)[at]


def main() -> None:
    """Time the three on shuffled and on sorted passes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(2)
    encodings = unmask.load("default").tokenize(sentences(options.data)[:2000])
    lengths = np.array([len(encoding) for encoding in encodings])
    orders = {
        "sorted by length": list(token_budget_batches(lengths, 2048)),
        "as they came": np.array_split(np.arange(len(lengths)), 2048 // 130),
    }
    for name, parts in orders.items():
        batches = []
        for part in parts:
            layout = SequenceLayout.of_lengths(lengths[part])
            batches.append((*torch.randn(3, layout.token_count, HEADS, WIDTH), layout))
        forms = {"per length": per_length, "per sequence": per_sequence, "padded with mask": padded}
        for form in forms.values():
            for batch in batches[:3]:
                torch.testing.assert_close(form(*batch), per_length(*batch))
        times: dict[str, list[float]] = {form: [] for form in forms}
        with torch.inference_mode():
            for _ in range(options.rounds):
                for label, form in forms.items():
                    times[label].append(
                        seconds(lambda form=form, batches=batches: [form(*batch) for batch in batches])
                    )
        shown = ", ".join(f"{label} {1e3 * statistics.median(t):.0f} ms" for label, t in times.items())
        print(f"{name}, {len(lengths)} sentences, {int(lengths.sum())} tokens: {shown}")


if __name__ == "__main__":
    main()
