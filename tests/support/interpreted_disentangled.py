"""The Triton kernel of disentangled attention, interpreted on a CPU, beside the reference kernel.

Run as a program with TRITON_INTERPRET=1: prints the greatest difference of every result by case, as JSON.
"""

import json
import math
import sys

import numpy as np
import torch

from unmask.kernels import AttentionBias, DistanceBias
from unmask.kernels.distances import table_rows
from unmask.kernels.gpu.disentangled import TritonDisentangledKernel
from unmask.kernels.reference import ReferenceKernel
from unmask.kernels.triton import disentangled_launch as bands
from unmask.kernels.triton.disentangled_launch import EXACT
from unmask.spec import Disentangled, FullAttention
from unmask.text import SequenceLayout

CASES = {
    "tile edges, buckets": (Disentangled(7, buckets=4), [1, 15, 16, 17, 49]),
    "content to position": (Disentangled(7, position_to_content=False), [33]),
    "position to content": (Disentangled(7, content_to_position=False), [33]),
    "clamped": (Disentangled(9, buckets=8, clamped=True), [34]),
}
"""In every run of the tests."""

MORE = {
    "saturation edges, no buckets": (Disentangled(20), [19, 20, 21, 22, 65, 97]),
    "clamped": (Disentangled(20, buckets=8, clamped=True), [63, 64, 97]),
    "no position term": (Disentangled(7, content_to_position=False, position_to_content=False), [3, 50]),
    "wider than the texts": (Disentangled(512, buckets=256), [5, 90]),
    "one distance": (Disentangled(1), [1, 2, 70]),
    "one row": (Disentangled(1, clamped=True), [1, 2, 70]),
}
"""In the long run."""

NAMES = ("result", "log-sum-exp", "queries", "keys", "values", "table as keys", "table as queries")


def inputs(position, lengths, heads, width, seed=0):
    """Queries, keys, values, tables, and what the loss multiplies results and log-sum-exps by; float64."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    tokens = sum(lengths)
    content = draw(3, tokens, heads, width)
    has = position.content_to_position, position.position_to_content
    tables = [draw(2 * position.span, heads, width) if one else None for one in has]
    return [*content, *tables], draw(tokens, heads, width), draw(tokens, heads)


def run(kernel, position, lengths, tensors, o_weight, lse_weight, dtype, **options):
    """Results by name, with the gradients of everything that has one."""
    leaves = [x if x is None else x.to(dtype, copy=True).requires_grad_() for x in tensors]
    q, k, v, *tables = leaves
    layout = SequenceLayout.of_lengths(lengths)
    o_THK, lse_TH = kernel.attend(
        q,
        k,
        v,
        kernel.plan(layout, FullAttention(), torch.device("cpu")),
        pattern=FullAttention(),
        bias=AttentionBias(distances=DistanceBias(position, *tables)),
        log_sum_exp=True,
        **options,
    )
    assert (o_THK.dtype, lse_TH.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    loss = (o_THK * o_weight.to(dtype)).sum() + (lse_TH * lse_weight.to(dtype)).sum()
    loss.backward()
    assert all(x is None or x.grad.dtype == dtype for x in leaves)
    found = [o_THK.detach(), lse_TH.detach(), *(x if x is None else x.grad for x in leaves)]
    return dict(zip(NAMES, found, strict=True))


def differences(found, expected):
    """The greatest of each, in units of the greatest expected value where that is above 1."""
    return {
        name: float((found[name].double() - x).abs().max() / max(1.0, x.abs().max()))
        for name, x in expected.items()
        if x is not None
    }


def beside_the_reference(position, lengths, dtype=torch.float32, heads=2, width=32):
    tensors, o_weight, lse_weight = inputs(position, lengths, heads, width)
    rounded = [x if x is None else x.to(dtype).double() for x in tensors]
    expected = run(ReferenceKernel(), position, lengths, rounded, o_weight, lse_weight, torch.float64)
    found = run(TritonDisentangledKernel(), position, lengths, rounded, o_weight, lse_weight, dtype)
    return differences(found, expected)


def heads_apart():
    """Two heads in runs of one, and in one run."""
    position, lengths = Disentangled(5), [20]
    made = inputs(position, lengths, 2, 32)
    kernel = TritonDisentangledKernel()
    together = run(kernel, position, lengths, *made, torch.float32)
    bands.BYTES_AT_ONCE, kept = 1, bands.BYTES_AT_ONCE
    apart = run(kernel, position, lengths, *made, torch.float32)
    bands.BYTES_AT_ONCE = kept
    return differences(apart, {name: x.double() for name, x in together.items()})


def strided():
    """Queries, keys and values as parts of one tensor, and those whose features do not lie side by side."""
    position, lengths = Disentangled(5), [9, 20]
    tensors, _, _ = inputs(position, lengths, 2, 32)
    tensors = [x.float() for x in tensors]
    kernel, layout = TritonDisentangledKernel(), SequenceLayout.of_lengths(lengths)
    bias = AttentionBias(distances=DistanceBias(position, *tensors[3:]))
    plan = kernel.plan(layout, FullAttention(), torch.device("cpu"))
    plain = kernel.attend(*tensors[:3], plan, pattern=FullAttention(), bias=bias).o_THK
    parts = torch.stack(tensors[:3], 1).unbind(1)
    turned = [x.transpose(0, 2).contiguous().transpose(0, 2) for x in tensors[:3]]
    return {
        name: float(
            (kernel.attend(*some, plan, pattern=FullAttention(), bias=bias).o_THK - plain).abs().max()
        )
        for name, some in (("parts of one", parts), ("turned", turned))
    }


def dropped(share=0.3):
    """Values that are the unit vectors show which probabilities were dropped; those give the reference."""
    position, length = Disentangled(3), 32
    tensors, o_weight, lse_weight = inputs(position, [length], 2, length)
    unit = torch.eye(length, dtype=torch.float64)[:, None].expand(-1, 2, -1)
    kernel = TritonDisentangledKernel()
    arguments = (position, [length])
    torch.manual_seed(7)
    shown = run(
        kernel,
        *arguments,
        [*tensors[:2], unit, *tensors[3:]],
        o_weight,
        lse_weight,
        torch.float32,
        dropout=share,
    )
    torch.manual_seed(7)
    found = run(kernel, *arguments, tensors, o_weight, lse_weight, torch.float32, dropout=share)
    torch.manual_seed(8)
    other = run(kernel, *arguments, tensors, o_weight, lse_weight, torch.float32, dropout=share)
    kept_NHC = shown["result"] > 0
    leaves = [x.clone().requires_grad_() for x in tensors]
    q, k, v, as_keys, as_queries = leaves
    places = torch.arange(length)
    rows = table_rows(places[:, None] - places[None, :], position)
    s_HRC = torch.einsum("rhk,chk->hrc", q, k) + torch.einsum("rhk,rchk->hrc", q, as_keys[rows])
    s_HRC = (s_HRC + torch.einsum("chk,rchk->hrc", k, as_queries[rows])) / math.sqrt(3 * length)
    p_HRC = s_HRC.softmax(-1) * kept_NHC.permute(1, 0, 2) / (1 - share)
    o_THK, lse_TH = torch.einsum("hrc,chk->rhk", p_HRC, v), s_HRC.logsumexp(-1).T
    ((o_THK * o_weight).sum() + (lse_TH * lse_weight).sum()).backward()
    expected = dict(zip(NAMES, (o_THK.detach(), lse_TH.detach(), *(x.grad for x in leaves)), strict=True))
    return differences(found, expected) | {
        "kept": float(kept_NHC.double().mean()),
        "heads that differ": float((kept_NHC[:, 0] != kept_NHC[:, 1]).double().mean()),
        "another seed": float((other["result"] - found["result"]).abs().max()),
    }


def kinds_of_tiles():
    """How many steps of each kind the cases hold: all distances read one row at either end, or not."""
    counts = np.zeros(3, dtype=int)
    how = EXACT
    for position, lengths in CASES.values():
        for length in lengths:
            for first in range(0, length, how.tile):
                for at in range(0, length, how.step):
                    ends = torch.tensor([first - at - how.step + 1, first + how.tile - 1 - at])
                    low, high = table_rows(ends, position).tolist()
                    counts[0 if low == high and ends[0] > 0 else 2 if low == high else 1] += 1
    return dict(zip(("behind", "near", "ahead"), counts.tolist(), strict=True))


if __name__ == "__main__":
    short = Disentangled(7, buckets=4), [35]
    if sys.argv[1:] == ["more"]:
        report = {name: beside_the_reference(*case) for name, case in MORE.items()}
        report["width 64"] = beside_the_reference(*short, width=64)
        report["width 128"] = beside_the_reference(*short, width=128)
    else:
        report = {
            "cases": {name: beside_the_reference(*case) for name, case in CASES.items()},
            "float16": beside_the_reference(*short, dtype=torch.float16),
            "heads apart": heads_apart(),
            "strided": strided(),
            "dropped": dropped(),
            "kinds of tiles": kinds_of_tiles(),
        }
    print(json.dumps(report))
