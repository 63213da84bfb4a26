"""Our packed Triton kernel: by Triton's interpreter against the definition, its plans, what it refuses."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import KernelError
from unmask.kernels import AttentionBias, AttentionRequest, DistanceBias
from unmask.kernels.gpu.packed import TritonPackedKernel
from unmask.kernels.triton.packed_tiles import TILE
from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    NoPosition,
    SlidingWindow,
)
from unmask.text import SequenceLayout

pytestmark = pytest.mark.long

KERNEL = TritonPackedKernel()
CPU = torch.device("cpu")
BOUNDS = {"float32": 1e-5, "float16": 4e-3}
"""Largest error for inputs of deviation 1; in float16 the log-sum-exp alone is rounded to 2e-3."""

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")


def numbers(distribution):
    return tuple(int(part) for part in version(distribution).split(".")[:2])


def judge(device, *more):
    """Run every case in a process of its own, for Triton reads its variable when it is imported."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    command = [sys.executable, "-W", "error", "-m", "tests.support.packed_in_triton", device, *more]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    cases, dropout = ([line for line in lines if kind in line] for kind in ("case", "dropout"))
    assert len(cases) > (15 if more else 8)
    assert len(dropout) == 2
    for line in cases:
        bound = BOUNDS[line["case"]["dtype"]]
        assert all(error <= bound for error in line["errors"].values()), line
    for line in dropout:
        found = line["errors"]
        assert 0.3 < found["dropped"] < 0.5, line
        assert found["heads_agree"] < 0.7, line
        assert found["gradient"] <= 1e-5, line
    assert dropout[0]["errors"]["dropped"] == dropout[1]["errors"]["dropped"]


@needs_triton
@pytest.mark.parametrize(
    "more", [(), pytest.param(("more",), marks=pytest.mark.slow)], ids=["each kind", "more"]
)
def test_interpreted_it_equals_the_definition(more):
    if numbers("triton") < (3, 7) and numbers("numpy") >= (2, 4):
        pytest.skip("this triton's interpreter cannot count with this numpy")
    judge("cpu", *more)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_equals_the_definition():
    judge("cuda", "more")


@needs_triton
@given(
    lengths=st.lists(st.sampled_from([1, 5, 63, 64, 65, 127, 128, 129, 300]), min_size=1, max_size=12),
    pattern=st.sampled_from(
        [
            FullAttention(),
            CausalAttention(),
            SlidingWindow(0),
            SlidingWindow(70),
            SlidingWindow(400),
            SlidingWindow(2, dilation=3),
        ]
    ),
)
def test_plans_hand_out_every_token_once(lengths, pattern):
    layout = SequenceLayout.of_lengths(lengths)
    plan = KERNEL.plan(layout, pattern, CPU)
    assert {table.dtype for table in (plan.owner_T, plan.groups, plan.tiles)} == {torch.int32}
    assert all(table.data_ptr() % 16 == plan.owner_T.data_ptr() % 16 for table in (plan.groups, plan.tiles))
    np.testing.assert_array_equal(plan.owner_T, layout.offsets[layout.sequence_of_T])
    grouped, tiled, long = (np.zeros(layout.token_count, dtype=int) for _ in range(3))
    for first, end in plan.groups.tolist():
        assert end - first <= plan.size
        grouped[first:end] += 1
    for number, (start, length, row) in enumerate(plan.tiles.tolist()):
        rows = slice(start + row, start + min(row + TILE, length))
        tiled[rows] += 1
        if number < plan.long_tiles:
            long[rows] += 1
    assert (tiled == 1).all()
    assert (grouped + long == 1).all()
    assert (np.diff(plan.tiles[:, 1]) <= 0).all()


@needs_triton
def test_windows_that_hold_every_text_are_none():
    layout = SequenceLayout.of_lengths([5, 9])
    assert KERNEL.plan(layout, SlidingWindow(8), CPU).span == -1
    assert KERNEL.plan(layout, SlidingWindow(7), CPU).span == 7
    assert KERNEL.plan(layout, SlidingWindow(4, dilation=2), CPU).span == 8


def attend(width=16, dtype=torch.float32, pattern=None, planned=None, bias=None):
    q = torch.randn(3, 2, width).to(dtype)
    plan = KERNEL.plan(SequenceLayout.of_lengths([3]), planned or FullAttention(), CPU)
    return KERNEL.attend(q, q, q, plan, pattern=pattern or FullAttention(), bias=bias or AttentionBias())


@needs_triton
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"width": 24}, "something its record does not list"),
        ({"dtype": torch.float64}, "something its record does not list"),
        ({"bias": AttentionBias(distances=DistanceBias(Disentangled(4), None, None))}, "does not list"),
        ({"pattern": SlidingWindow(1)}, "called for SlidingWindow.* with a plan for FullAttention"),
        ({"pattern": CausalAttention()}, "called for CausalAttention.* with a plan for FullAttention"),
        ({"planned": BlockSparse(4)}, "has no BlockSparse pattern"),
        ({}, "runs on cuda, not on cpu"),
    ],
)
def test_it_refuses_what_it_cannot_do(asked, reason):
    with pytest.raises(KernelError, match=reason):
        attend(**asked)


def test_its_record_says_what_it_can_do():
    fields = {
        "device": "cuda",
        "dtype": "bfloat16",
        "pattern": SlidingWindow(64),
        "position": Alibi(),
        "head_width": 64,
    }
    fields |= {"longest": 8192, "gradients": True, "dropout": True, "log_sum_exp": True}
    can = KERNEL.capability
    assert can.refusal(AttentionRequest(**fields)) == (
        None if HAS_TRITON else "needs triton, which is not installed"
    )
    if HAS_TRITON:
        assert "not on cpu" in can.refusal(AttentionRequest(**fields | {"device": "cpu"}))
        assert "not 24" in can.refusal(AttentionRequest(**fields | {"head_width": 24}))
        assert "BlockSparse" in can.refusal(
            AttentionRequest(**fields | {"pattern": BlockSparse(2), "position": NoPosition()})
        )
