"""Disentangled attention in strips against the reference: block and band edges, gradients, memory."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import plain
from tests.support.examples import examples
from unmask.encoder.layers.positions import DistanceProjections, rows_read
from unmask.errors import KernelError
from unmask.kernels import AttentionBias, AttentionRequest, DistanceBias, choose
from unmask.kernels.disentangled import kernel as disentangled
from unmask.kernels.disentangled import strips
from unmask.kernels.disentangled.kernel import DisentangledKernel
from unmask.kernels.disentangled.strips import ROWS, Band
from unmask.kernels.reference import ReferenceKernel
from unmask.spec import Disentangled, FullAttention, SlidingWindow, SoftmaxAttention
from unmask.text import SequenceLayout

OURS, REFERENCE = DisentangledKernel(), ReferenceKernel()

TERMS = [
    pytest.param({}, id="both"),
    pytest.param({"position_to_content": False}, id="c2p"),
    pytest.param({"content_to_position": False}, id="p2c"),
    pytest.param({"content_to_position": False, "position_to_content": False}, id="none"),
]

SHAPES = [
    pytest.param({"max_distance": 6}, id="short"),
    pytest.param({"max_distance": 1}, id="one"),
    pytest.param({"max_distance": 20, "buckets": 8}, id="merged"),
    pytest.param({"max_distance": 9, "buckets": 6, "clamped": True}, id="merged-clamped"),
    pytest.param({"max_distance": 5, "clamped": True}, id="clamped"),
    pytest.param({"max_distance": 400}, id="longer than texts"),
]


def tensors(lengths, position, dtype=torch.float64, heads=2, width=4, seed=0):
    """Queries, keys, values and the tables that the position has."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    made = [draw(sum(lengths), heads, width) for _ in range(3)]
    tables = [draw(2 * position.span, heads, width) for _ in range(2)]
    used = (position.content_to_position, position.position_to_content)
    made += [table for table, has in zip(tables, used, strict=True) if has]
    return [x.to(dtype).requires_grad_() for x in made]


def attend(kernel, lengths, position, given_tensors, **options):
    q, k, v, *tables = given_tensors
    keys = tables.pop(0) if position.content_to_position else None
    queries = tables.pop(0) if position.position_to_content else None
    bias = AttentionBias(distances=DistanceBias(position, keys, queries))
    plan = kernel.plan(SequenceLayout.of_lengths(lengths), FullAttention(), torch.device("cpu"))
    return kernel.attend(q, k, v, plan, pattern=FullAttention(), bias=bias, **options)


EDGES = st.sampled_from([1, 2, 5, 6, 7, 19, 21, ROWS - 1, ROWS, ROWS + 1, ROWS + 6, 2 * ROWS + 3])


@pytest.mark.parametrize("bias", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
@examples(3)
@given(lengths=st.lists(EDGES, min_size=1, max_size=3), seed=st.integers(0, 2**16))
def test_strips_equal_the_definition(shape, bias, lengths, seed):
    position = Disentangled(**shape, **bias)
    exact = tensors(lengths, position, seed=seed)
    expected = attend(REFERENCE, lengths, position, exact, log_sum_exp=True)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        found = attend(OURS, lengths, position, [x.to(dtype) for x in exact], log_sum_exp=True)
        wide = torch.promote_types(dtype, torch.float32)
        assert (found.o_THK.dtype, found.lse_TH.dtype) == (dtype, wide)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("bias", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at_once", [1, 1 << 20], ids=["head by head", "together"])
def test_gradients_of_content_and_tables_by_finite_differences(shape, bias, at_once, monkeypatch):
    # Strips of three queries, so that a text of twelve tokens has every kind of strip and block.
    monkeypatch.setitem(disentangled.AT_ONCE, "cpu", at_once)
    monkeypatch.setattr(disentangled, "ROWS", 3)
    monkeypatch.setattr(strips, "ROWS", 3)
    strips._band.cache_clear()
    lengths, position = (
        [2, 12, 1, 2],
        Disentangled(**(shape | {"max_distance": min(shape["max_distance"], 9)}), **bias),
    )
    inputs = tensors(lengths, position, heads=2, width=2)
    assert torch.autograd.gradcheck(
        lambda *x: tuple(attend(OURS, lengths, position, x, log_sum_exp=True)), inputs, fast_mode=True
    )
    strips._band.cache_clear()


@pytest.mark.parametrize("bias", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at_once", [1, 1 << 20], ids=["head by head", "together"])
def test_gradients_far_beyond_the_band_equal_the_definition(shape, bias, at_once, monkeypatch):
    monkeypatch.setitem(disentangled.AT_ONCE, "cpu", at_once)
    lengths, position = [300, 1, 40, 300], Disentangled(**shape, **bias)
    found = []
    for kernel in (OURS, REFERENCE):
        inputs = tensors(lengths, position, heads=3)
        o_THK, lse_TH = attend(kernel, lengths, position, inputs, log_sum_exp=True)
        loss = (o_THK * o_THK.detach().cos()).sum() + (lse_TH * lse_TH.detach().sin()).sum()
        found.append(torch.autograd.grad(loss, inputs))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@examples(10)
@given(length=st.integers(1, 500), first=st.integers(0, 499), seed=st.integers(0, 2**16))
def test_a_strip_reads_one_row_for_every_key_outside_its_band(shape, length, first, seed):
    position, first = Disentangled(**shape), min(first, length - 1)
    band, end = Band.of(position, length), min(first + ROWS, length)
    left, right = band.columns(first, end)
    reads = lambda i, j: plain.distance_row(i - j, position)  # noqa: E731
    for columns, farthest in (((0, left), length - 1), ((right, length), 1 - length)):
        row = plain.distance_row(farthest, position)
        assert {reads(i, j) for i in (first, end - 1) for j in range(*columns)} <= {row}
    listed = {band.first + n: int(row) for n, row in enumerate(band.rows_W)}
    for i in (first, end - 1):
        assert all(listed[i - j] == reads(i, j) for j in range(left, right))


@pytest.mark.parametrize("lengths", [[40, 40, 3], [300, 17]])
def test_equal_calls_give_equal_bits(lengths):
    position, results = Disentangled(30, buckets=12), []
    for _ in range(2):
        inputs = tensors(lengths, position, torch.float32)
        o_THK = attend(OURS, lengths, position, inputs).o_THK
        results.append((o_THK, *torch.autograd.grad(o_THK.square().sum(), inputs)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lengths", [[5, 5, 3], [200]])
def test_backward_drops_what_forward_dropped(lengths):
    position = Disentangled(4)
    inputs = tensors(lengths, position, heads=2, width=3)

    def run(*x):
        torch.manual_seed(7)
        return attend(OURS, lengths, position, x, dropout=0.4).o_THK

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    kept = attend(OURS, lengths, position, inputs).o_THK
    assert not torch.allclose(run(*inputs), kept, atol=1e-3)


def test_dropout_keeps_the_mean():
    position, lengths = Disentangled(4), [12]
    inputs = [x.detach() for x in tensors(lengths, position)]
    torch.manual_seed(0)
    dropped = torch.stack([attend(OURS, lengths, position, inputs, dropout=0.5).o_THK for _ in range(500)])
    torch.testing.assert_close(
        dropped.mean(0), attend(OURS, lengths, position, inputs).o_THK, rtol=0, atol=0.25
    )
    assert not torch.equal(dropped[0], dropped[1])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.03), (torch.float16, 0.002)])
def test_half_precision_within_the_bound_that_is_stated(dtype, bound):
    position, lengths = Disentangled(64, buckets=32), [400, 90, 90]
    inputs = [x.detach() for x in tensors(lengths, position, dtype, heads=3, width=64)]
    expected = attend(REFERENCE, lengths, position, [x.double() for x in inputs]).o_THK
    found = attend(OURS, lengths, position, inputs).o_THK
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() < bound


def test_gradients_of_bfloat16_are_those_of_float32():
    position, lengths = Disentangled(64, buckets=32), [150, 9]
    halves = tensors(lengths, position, torch.bfloat16, heads=2, width=8)
    singles = [x.detach().float().requires_grad_() for x in halves]
    for_o = torch.randn(159, 2, 8).bfloat16()
    found = torch.autograd.grad(attend(OURS, lengths, position, halves).o_THK, halves, for_o)
    expected = torch.autograd.grad(attend(OURS, lengths, position, singles).o_THK, singles, for_o.float())
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs.bfloat16())


def test_it_refuses_what_its_record_does_not_list():
    position = Disentangled(4)
    q, k, v, keys, queries = tensors([3], position)
    plan = OURS.plan(SequenceLayout.of_lengths([3]), FullAttention(), torch.device("cpu"))
    apart = DistanceBias(position, keys, queries)
    for pattern, bias in (
        (SlidingWindow(1), AttentionBias(distances=apart)),
        (FullAttention(), AttentionBias()),
        (FullAttention(), AttentionBias(slopes_H=torch.ones(2), distances=apart)),
    ):
        with pytest.raises(KernelError):
            OURS.attend(q, k, v, plan, pattern=pattern, bias=bias)


def test_it_is_chosen_for_disentangled_attention_on_the_host():
    request = AttentionRequest(
        "cpu", "float32", FullAttention(), Disentangled(8), 64, 100, gradients=True, log_sum_exp=True
    )
    assert choose(request).capability.name == "disentangled"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("longest", [1, 2, 64, 65, 300])
def test_layers_project_every_row_that_texts_read_and_no_other(shape, longest):
    position = Disentangled(**shape, shared_projections=True)
    layer = DistanceProjections(SoftmaxAttention(2, 3, position=position), position, 6)
    content, table = torch.nn.Linear(6, 18), torch.randn(2 * position.span, 6)
    read = rows_read(position, longest)
    used = {plain.distance_row(apart, position) for apart in range(1 - longest, longest)}
    assert used <= set(range(read.start, read.stop))
    whole, part = layer(table, content).distances, layer(table, content, read).distances
    for all_rows, some in ((whole.keys_PHK, part.keys_PHK), (whole.queries_PHK, part.queries_PHK)):
        torch.testing.assert_close(some[read], all_rows[read])
        assert some.shape == all_rows.shape
        assert not some[: read.start].any()
        assert not some[read.stop :].any()


MEASURE = """
import resource, sys, torch

torch.set_num_threads(1)
from tests.contracts.test_disentangled import OURS, attend, tensors
from unmask.spec import Disentangled

position = Disentangled(512, buckets=256)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def run(length, gradients):
    inputs = tensors([length], position, torch.float32, heads=1, width=64)
    o_THK = attend(OURS, [length], position, inputs).o_THK
    if gradients:
        torch.autograd.grad(o_THK.sum(), inputs)

run(300, True)
before = peak()
run(4096, True)
both = peak()
with torch.inference_mode():
    run(8192, False)
print(both - before, peak() - before)
sys.exit()
"""


@pytest.mark.long
def test_memory_is_far_from_the_square(apart):
    ran = apart.run(before=MEASURE)
    both_mib, forward_mib = map(float, ran.out.split())
    square_mib = 4096**2 * 4 / 2**20  # scores of one head; autograd would keep several
    assert both_mib < 2 * square_mib
    assert forward_mib < 0.5 * 4 * square_mib  # at twice the length
