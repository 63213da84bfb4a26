"""Torch's own kernels for GPUs as far as a CPU can show: what they are told, and FlexAttention uncompiled."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from unmask.errors import KernelError
from unmask.kernels import KERNELS, AttentionBias, MaskContext, Tile, allowed
from unmask.kernels.gpu.flex import BLOCK, FlexKernel, block_map
from unmask.kernels.gpu.varlen import VarlenKernel
from unmask.kernels.reference import ReferenceKernel
from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    FullAttention,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text import SequenceLayout

CPU = torch.device("cpu")
REFERENCE = ReferenceKernel()


def layout_of(lengths, seed=0, share=0.05):
    marks = np.random.default_rng(seed).random(sum(lengths)) < share
    return SequenceLayout.of_lengths(lengths, marks)


def seen_by_definition(layout, pattern, filled):
    """Every query by every key of the batch, filling included, which sees itself alone."""
    seen = np.zeros((filled, filled), dtype=bool)
    for sequence in range(layout.sequence_count):
        rows, context = layout.rows(sequence), MaskContext.of(layout, sequence, 1)
        part = allowed(Tile.whole(rows.stop - rows.start), pattern, CPU, context)
        seen[rows, rows] = True if part is None else part.numpy()
    seen[layout.token_count :, layout.token_count :] = np.eye(filled - layout.token_count, dtype=bool)
    return seen


REACHES = [
    FullAttention(), CausalAttention(), SlidingWindow(0), SlidingWindow(3), SlidingWindow(150),
    SlidingWindow(300),
    SlidingWindow(40, dilation=7),
    SlidingWindowGlobal(SlidingWindow(5)), SlidingWindowGlobal(SlidingWindow(2, dilation=90)),
]  # fmt: skip


@pytest.mark.parametrize("pattern", REACHES, ids=str)
@examples(8)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 40, 127, 128, 129, 256, 300, 600]), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_the_map_of_blocks_is_the_definitions(pattern, lengths, seed, share):
    layout = layout_of(lengths, seed, share)
    some, every = block_map(layout, pattern)
    seen = seen_by_definition(layout, pattern, len(some) * BLOCK)
    tiles = seen.reshape(len(some), BLOCK, len(some), BLOCK)
    assert some[tiles.any((1, 3))].all(), "a block that is needed is missing"
    assert tiles.all((1, 3))[every].all(), "a block is run without the rule that needs it"
    assert some[every].all()


def test_the_map_leaves_out_what_is_far_and_other():
    layout = SequenceLayout.of_lengths([BLOCK] * 6)
    some, every = block_map(layout, FullAttention())
    assert np.array_equal(some, np.eye(6, dtype=bool))
    assert np.array_equal(every, some)
    long = SequenceLayout.of_lengths([BLOCK * 40])
    some, every = block_map(long, SlidingWindow(64))
    assert some.sum() == 40 + 2 * 39
    assert not every.any()
    assert block_map(long, SlidingWindow(BLOCK * 3))[1].any()
    some, every = block_map(long, CausalAttention())
    assert np.array_equal(some, np.tri(40, dtype=bool))
    assert np.array_equal(every, np.tri(40, k=-1, dtype=bool))


@pytest.fixture
def uncompiled(monkeypatch):
    """FlexAttention on a CPU with gradients, which torch refuses outside of its own tests; dense."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        pytest.param(FullAttention(), None, marks=pytest.mark.slow),
        pytest.param(SlidingWindow(3), Alibi(), marks=pytest.mark.slow),
        (SlidingWindow(40, dilation=3), None),
        (CausalAttention(), None),
        pytest.param(SlidingWindowGlobal(SlidingWindow(2)), None, marks=pytest.mark.slow),
        (SlidingWindowGlobal(SlidingWindow(4)), Alibi()),
    ],
    ids=str,
)
def test_flex_equals_the_reference(pattern, position, uncompiled):
    layout, kernel = layout_of([3, 1, 130, 60, 7]), FlexKernel()
    bias = AttentionBias() if position is None else AttentionBias.of(position, 2)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, layout.token_count, 2, 16, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, layout.token_count, 2, 16, dtype=torch.float64, generator=generator)
    found = []
    for one in (REFERENCE, kernel):
        parts = [x.clone().requires_grad_() for x in inputs]
        plan = one.plan(layout, pattern, CPU)
        o, lse = one.attend(*parts, plan, pattern=pattern, bias=bias, log_sum_exp=True)
        gradients = torch.autograd.grad((o * weights[0]).sum() + (lse * weights[1, ..., 0]).sum(), parts)
        found.append((o, lse, *gradients))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
    single = [x.float() for x in inputs]
    o, none = kernel.attend(*single, kernel.plan(layout, pattern, CPU), pattern=pattern, bias=bias)
    assert none is None
    assert o.dtype == torch.float32
    torch.testing.assert_close(o.double(), found[0][0], rtol=0, atol=1e-5)


def test_flex_refuses_what_its_record_does_not_list():
    kernel, layout = FlexKernel(), layout_of([4])
    q = torch.randn(4, 1, 16)
    with pytest.raises(KernelError, match="no BlockSparse pattern"):
        kernel.plan(layout, BlockSparse(2), CPU)
    plan = kernel.plan(layout, FullAttention(), CPU)
    with pytest.raises(KernelError, match="does not list"):
        kernel.attend(q, q, q, plan, pattern=FullAttention(), bias=AttentionBias(), dropout=0.1)
    with pytest.raises(KernelError, match="does not list"):
        kernel.attend(q, q, q, plan, pattern=BlockSparse(2), bias=AttentionBias())


class OnCpu(VarlenKernel):
    """The same, of which the record is made to hold what a CPU has."""

    capability = replace(VarlenKernel.capability, devices=frozenset({"cpu"}), dtypes=frozenset({"float64"}))


@pytest.mark.parametrize(
    "pattern",
    [FullAttention(), CausalAttention(), SlidingWindow(0), SlidingWindow(3), SlidingWindow(500)],
    ids=str,
)
def test_varlen_tells_torch_what_the_definition_means(pattern, monkeypatch):
    from torch.nn.attention import varlen

    signature = inspect.signature(varlen.varlen_attn)
    heard = []

    def by_the_documentation(*arguments, **named):
        call = signature.bind(*arguments, **named).arguments
        q, k, v, offsets, keys = (call[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k"))
        heard.append(call)
        before, after = call["window_size"]
        assert offsets.dtype == keys.dtype == torch.int32
        mixed = []
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            apart = torch.arange(end - start)[None, :] - torch.arange(end - start)[:, None]
            seen = ((apart >= -before) | (before < 0)) & ((apart <= after) | (after < 0))
            s = torch.einsum("rhk,chk->hrc", q[start:end], k[start:end]) * q.shape[-1] ** -0.5
            p = s.masked_fill(~seen, -torch.inf).softmax(-1)
            mixed.append(torch.einsum("hrc,chk->rhk", p, v[start:end]))
        return torch.cat(mixed)

    monkeypatch.setattr(varlen, "varlen_attn", by_the_documentation)
    layout = SequenceLayout.of_lengths([5, 1, 17, 2])
    q, k, v = torch.randn(3, 25, 2, 8, dtype=torch.float64)
    kernel = OnCpu()
    found = kernel.attend(q, k, v, kernel.plan(layout, pattern, CPU), pattern=pattern, bias=AttentionBias())
    expected = REFERENCE.attend(q, k, v, layout, pattern=pattern, bias=AttentionBias())
    torch.testing.assert_close(found.o_THK, expected.o_THK)
    assert found.lse_TH is None
    assert heard[0]["max_q"] == heard[0]["max_k"] == 17


def test_varlen_refuses_what_its_record_does_not_list():
    layout, q = SequenceLayout.of_lengths([4]), torch.randn(4, 1, 8, dtype=torch.float64)
    kernel, whole = OnCpu(), OnCpu().plan(layout, FullAttention(), CPU)
    for pattern in (SlidingWindow(2, dilation=2), BlockSparse(2), SlidingWindowGlobal(SlidingWindow(2))):
        with pytest.raises(KernelError, match="record lists none but"):
            kernel.plan(layout, pattern, CPU)
    with pytest.raises(KernelError, match="plan of another pattern"):
        kernel.attend(q, q, q, whole, pattern=SlidingWindow(2), bias=AttentionBias())
    asked = ({"bias": AttentionBias.of(Alibi(), 1)}, {"dropout": 0.1}, {"log_sum_exp": True})
    for one in asked:
        with pytest.raises(KernelError, match="does not list"):
            kernel.attend(q, q, q, whole, **({"pattern": FullAttention(), "bias": AttentionBias()} | one))
    for tensor in (q, q.bfloat16()):
        with pytest.raises(KernelError, match="does not list"):
            VarlenKernel().attend(
                tensor, tensor, tensor, whole, pattern=FullAttention(), bias=AttentionBias()
            )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["varlen", "flex"])
@pytest.mark.parametrize(
    "pattern", [FullAttention(), CausalAttention(), SlidingWindow(3), SlidingWindow(64)], ids=str
)
def test_on_a_gpu_outputs_and_gradients_are_the_references(name, pattern):
    (kernel,) = [kernel for kernel in KERNELS if kernel.capability.name == name]
    layout, device = layout_of([1, 63, 200, 129]), torch.device("cuda")
    inputs = torch.randn(3, layout.token_count, 2, 64, device=device, dtype=torch.bfloat16)
    weights, found = torch.randn_like(inputs[0]), []
    for one in (REFERENCE, kernel):
        parts = [x.clone().requires_grad_() for x in inputs]
        o, _ = one.attend(*parts, one.plan(layout, pattern, device), pattern=pattern, bias=AttentionBias())
        found.append((o, *torch.autograd.grad(o, parts, weights)))
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)
