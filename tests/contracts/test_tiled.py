"""The tiled kernel against the reference on drawn layouts; its narrow precision, memory and repeatability.

`test_kernels` compares it with loops of its own, as every kernel.
"""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from unmask.errors import KernelError
from unmask.kernels import AttentionBias, DistanceBias, products
from unmask.kernels.reference import ReferenceKernel
from unmask.kernels.tiled import groups, plan
from unmask.kernels.tiled import kernel as runner
from unmask.kernels.tiled.kernel import TiledKernel
from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    NoPosition,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text import SequenceLayout

CPU = torch.device("cpu")
TILED, REFERENCE = TiledKernel(), ReferenceKernel()

REACHES = [
    FullAttention(),
    CausalAttention(),
    SlidingWindow(64),
    SlidingWindow(9, dilation=11),
    SlidingWindow(1),
    SlidingWindowGlobal(SlidingWindow(5), own_projections=False),
    SlidingWindowGlobal(SlidingWindow(3, dilation=2), own_projections=False),
    BlockSparse(16, 1),
    BlockSparse(16, 2, seed=1),
]
LENGTHS = st.lists(
    st.sampled_from([1, 2, 63, 64, 65, 66, 127, 128, 129, 191, 193, 200]), min_size=1, max_size=5
)
SHARES = st.sampled_from([0.0, 0.02, 1.0])


def drawn(lengths, share, heads=3, width=4, dtype=torch.float64, seed=0):
    """A layout with this share of global tokens, and random queries, keys and values."""
    marks = np.random.default_rng(seed).random(sum(lengths)) < share
    generator = torch.Generator().manual_seed(seed)
    shape = (3, sum(lengths), heads, width)
    return SequenceLayout.of_lengths(lengths, marks), torch.randn(shape, dtype=dtype, generator=generator)


def attend(kernel, layout, qkv, pattern, position=NoPosition(), **options):  # noqa: B008
    bias = AttentionBias.of(position, qkv[0].shape[1])
    return kernel.attend(*qkv, kernel.plan(layout, pattern, CPU), pattern=pattern, bias=bias, **options)


@pytest.mark.parametrize("pattern", REACHES, ids=str)
@examples(5)
@given(lengths=LENGTHS, share=SHARES, alibi=st.booleans(), seed=st.integers(0, 99))
def test_values_sums_and_gradients_equal_the_reference(pattern, lengths, share, alibi, seed):
    layout, qkv = drawn(lengths, share, seed=seed)
    towards = torch.randn((*qkv[0].shape[:2], 5), dtype=torch.float64)
    found = []
    for kernel in (TILED, REFERENCE):
        leaf = qkv.clone().requires_grad_()
        o_THK, lse_TH = attend(
            kernel, layout, leaf.unbind(), pattern, Alibi() if alibi else NoPosition(), log_sum_exp=True
        )
        loss = (o_THK * towards[..., :4]).sum() + (lse_TH * towards[..., 4]).sum()
        found.append((o_THK, lse_TH, *torch.autograd.grad(loss, leaf)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("pattern", REACHES, ids=str)
@pytest.mark.parametrize("scores_at_once", [1, 5_000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_however_blocks_fall_and_products_run(pattern, scores_at_once, dtype, monkeypatch):
    """Texts of many slabs, keys laid out for oneDNN: all that only long texts meet."""
    for module in (groups, plan):
        monkeypatch.setattr(module, "SCORES_AT_ONCE", scores_at_once)
    monkeypatch.setattr(runner, "APART_FROM", dict.fromkeys(runner.APART_FROM, 256))
    monkeypatch.setattr(products, "LAID_OUT_FROM", 64)
    layout, qkv = drawn([150, 1, 70, 70, 40, 70], 0.02)
    expected = attend(REFERENCE, layout, qkv, pattern, Alibi(), log_sum_exp=True)
    for options in ({"log_sum_exp": True}, {}):
        found = attend(TILED, layout, qkv.to(dtype), pattern, Alibi(), **options)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(found.o_THK.double(), expected.o_THK, rtol=0, atol=tolerance)
    leaf, exact = qkv.to(dtype, copy=True).requires_grad_(), qkv.clone().requires_grad_()
    for kernel, x in ((TILED, leaf), (REFERENCE, exact)):
        attend(kernel, layout, x.unbind(), pattern, Alibi()).o_THK.square().sum().backward()
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=0, atol=4 * tolerance)


@pytest.mark.parametrize("pattern", REACHES, ids=str)
def test_the_log_sum_exp_has_a_gradient(pattern):
    layout, qkv = drawn([3, 1, 9], 0.2, heads=2, width=3)
    leaves = [x.requires_grad_() for x in qkv.unbind()]
    short = BlockSparse(1, 1, seed=1) if isinstance(pattern, BlockSparse) else pattern
    assert torch.autograd.gradcheck(
        lambda *x: attend(TILED, layout, x, short, Alibi(), log_sum_exp=True), leaves, fast_mode=True
    )


@pytest.mark.parametrize(
    "pattern",
    [
        FullAttention(),
        CausalAttention(),
        SlidingWindow(2),
        SlidingWindowGlobal(SlidingWindow(1), own_projections=False),
        BlockSparse(1, 1, seed=1),
    ],
    ids=str,
)
def test_dropout_is_the_same_forward_and_backward(pattern):
    layout, qkv = drawn([3, 12], 0.2, heads=2, width=3)
    leaves = [x.requires_grad_() for x in qkv.unbind()]

    def dropped(*x):
        torch.manual_seed(5)
        return attend(TILED, layout, x, pattern, dropout=0.4).o_THK

    assert not torch.equal(dropped(*leaves), attend(TILED, layout, leaves, pattern).o_THK)
    assert torch.autograd.gradcheck(dropped, leaves, fast_mode=True)


@pytest.mark.parametrize(
    ("pattern", "share"),
    [
        (FullAttention(), 0.0),
        (CausalAttention(), 0.0),
        (SlidingWindowGlobal(SlidingWindow(64), own_projections=False), 0.001),
        pytest.param(
            SlidingWindowGlobal(SlidingWindow(64), own_projections=False), 1.0, marks=pytest.mark.slow
        ),
        (BlockSparse(64, 3, seed=0), 0.0),
    ],
    ids=str,
)
def test_one_text_of_4097_tokens(pattern, share):
    layout, qkv = drawn([4097], share, heads=1, width=8, dtype=torch.float32)
    expected = attend(REFERENCE, layout, qkv, pattern).o_THK
    torch.testing.assert_close(attend(TILED, layout, qkv, pattern).o_THK, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "pattern", [FullAttention(), CausalAttention(), SlidingWindow(64), BlockSparse(16, 1)], ids=str
)
@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_bfloat16_is_within_the_rounding_of_its_scores(pattern, sharpness):
    """Scores are rounded, off by at most u |s|, u = 2^-8 with room for the scaled queries' rounding, which
    multiplies a probability by at most exp(2 u |s|). Probabilities and results are rounded once each."""
    layout, qkv = drawn([700, 300], 0.0, width=64, dtype=torch.bfloat16)
    qkv[0] *= sharpness
    expected = attend(REFERENCE, layout, qkv.double(), pattern).o_THK
    greatest = torch.einsum("thk,shk->hts", qkv[0].double(), qkv[1].double()).abs().max() / 8
    unit = 2.0**-8
    bound = (math.expm1(2 * unit * greatest) + 2 * unit) * qkv[2].double().abs().max()
    narrow = (attend(TILED, layout, qkv, pattern).o_THK.double() - expected).abs()
    assert narrow.max() <= bound
    assert narrow.mean() <= 0.01 * sharpness * expected.abs().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_gradients_rounds_results_alone(dtype):
    layout, qkv = drawn([130, 7], 0.0, width=16, dtype=dtype)
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    found, expected = (
        attend(k, layout, x.unbind(), SlidingWindow(20)).o_THK for k, x in ((TILED, leaf), (REFERENCE, exact))
    )
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(found.double(), expected, rtol=1.01 * unit, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    # The gradient of a result is itself of this dtype, as is the result in its product with it.
    torch.testing.assert_close(
        leaf.grad.double(), exact.grad, rtol=0, atol=8 * unit * float(exact.grad.abs().max())
    )


@pytest.mark.parametrize("pattern", REACHES, ids=str)
def test_gradients_are_equal_to_the_bit_every_time(pattern):
    layout, qkv = drawn([300, 1, 64, 130, 5], 0.05, width=16, dtype=torch.float32)
    grads = []
    for _ in range(3):
        leaf = qkv.clone().requires_grad_()
        torch.manual_seed(1)
        attend(TILED, layout, leaf.unbind(), pattern, dropout=0.1).o_THK.square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


def scores(layout, pattern, heads=1):
    """How many scores the plan computes, of each head."""
    return sum(math.prod(group.shape) for group in TILED.plan(layout, pattern, CPU).of(heads).groups)


def test_work_is_what_the_pattern_holds():
    for length in (2_000, 8_000):
        text = SequenceLayout.of_lengths([length], np.arange(length) == 0)
        assert scores(text, SlidingWindow(64)) <= (length + 64) * 3 * 64
        assert scores(text, SlidingWindow(32, dilation=9)) <= (length + 64) * 2 * 64
        for own in (True, False):  # rows of global tokens are the layer's where it has projections for them
            pattern = SlidingWindowGlobal(SlidingWindow(64), own_projections=own)
            assert scores(text, pattern) <= (length + 64) * (3 * 64 + 1) + (not own) * length
        assert scores(text, BlockSparse(64, 3, seed=0), heads=2) <= length * 8 * 64 + 2 * 64 * length
        assert scores(text, FullAttention()) == length**2
        assert scores(text, CausalAttention()) <= length**2 * 9 / 16
    ragged = SequenceLayout.of_lengths(list(range(1, 100)))
    assert scores(ragged, SlidingWindow(16)) <= (ragged.token_count + 64) * (64 + 32)
    assert scores(ragged, FullAttention()) == (ragged.lengths**2).sum()


def test_texts_that_windows_hold_run_whole_and_others_of_any_number_as_one_group():
    layout = SequenceLayout.of_lengths([5, 3, 5])
    assert {g.shape for g in TILED.plan(layout, SlidingWindow(4), CPU).of(1).groups} == {(2, 5, 5), (1, 3, 3)}
    assert len(TILED.plan(layout, SlidingWindow(3), CPU).of(1).groups) == 1
    marks = SequenceLayout.of_lengths([70] * 40, np.arange(2_800) % 70 == 0)
    pattern = SlidingWindowGlobal(SlidingWindow(3), own_projections=False)
    assert len(TILED.plan(marks, pattern, CPU).of(1).groups) <= 4


def test_leaves_rows_of_global_tokens_to_layers_with_projections_for_them():
    layout, qkv = drawn([70, 3, 200], 0.1)
    ours, all_rows = (
        attend(
            TILED, layout, qkv, SlidingWindowGlobal(SlidingWindow(5), own_projections=own), NoPosition()
        ).o_THK
        for own in (True, False)
    )
    assert layout.globals_T.any()
    assert torch.allclose(ours[~layout.globals_T], all_rows[~layout.globals_T], atol=1e-12)
    assert ours.isfinite().all()


def test_refuses_what_its_record_does_not_list():
    layout, qkv = drawn([2], 0.0)
    plan = TILED.plan(layout, FullAttention(), CPU)
    with pytest.raises(KernelError, match="tiled"):
        TILED.attend(*qkv, plan, pattern=SlidingWindow(1), bias=AttentionBias())
    bias = AttentionBias(distances=DistanceBias(Disentangled(3), None, None))
    with pytest.raises(KernelError, match="tiled"):
        TILED.attend(*qkv, plan, pattern=FullAttention(), bias=bias)


PEAK = """
import sys, torch
from tests.contracts.test_tiled import TILED, attend, drawn
from unmask.spec import Alibi, BlockSparse, CausalAttention, FullAttention, SlidingWindow
from unmask.spec import SlidingWindowGlobal

def highest():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def run(length, share):
    globals = SlidingWindowGlobal(SlidingWindow(64), own_projections=False)
    for pattern in (FullAttention(), CausalAttention(), SlidingWindow(64), globals, BlockSparse(64, seed=0)):
        layout, qkv = drawn([length], share, heads=1, width=8, dtype=torch.float32)
        leaf = qkv.requires_grad_()
        attend(TILED, layout, leaf.unbind(), pattern, Alibi()).o_THK.sum().backward()

run(512, 0.01)
before = highest()
run(8192, 0.1)
print((highest() - before) / 1024)
sys.exit()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_forward_and_backward_at_8192_tokens(apart):
    ran = apart.run(before=PEAK)
    scores_of_a_head_mib = 8192 * 8192 * 4 / 2**20
    assert float(ran.out) < scores_of_a_head_mib / 2  # 60 to 95 MiB, by what the allocator keeps
