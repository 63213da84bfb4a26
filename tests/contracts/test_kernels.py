"""Every registered kernel against the definition, on layouts that hypothesis draws."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import plain
from tests.support.examples import examples
from tests.support.kernels import CPU_KERNELS
from unmask.errors import KernelError
from unmask.kernels import (
    KERNELS,
    AttentionBias,
    AttentionRequest,
    DistanceBias,
    RelativeBias,
    Tile,
    allowed,
    choose,
    probabilities,
    scores,
)
from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    NoPosition,
    RelativePositionBias,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text import SequenceLayout

REACHES = {
    FullAttention: [FullAttention()],
    CausalAttention: [CausalAttention()],
    SlidingWindow: [SlidingWindow(0), SlidingWindow(3), SlidingWindow(2, dilation=3), SlidingWindow(200)],
    SlidingWindowGlobal: [
        SlidingWindowGlobal(SlidingWindow(0), own_projections=False),
        SlidingWindowGlobal(SlidingWindow(2, dilation=2), own_projections=False),
    ],
    BlockSparse: [BlockSparse(1), BlockSparse(2, 1, seed=3), BlockSparse(3, 2), BlockSparse(5, 3, seed=0)],
}
POSITIONS = {
    NoPosition: NoPosition(),
    Alibi: Alibi(),
    Disentangled: Disentangled(7, buckets=4),
    RelativePositionBias: RelativePositionBias(12, max_distance=20),
}

CASES = [
    pytest.param(
        kernel, pattern, POSITIONS[position], id=f"{kernel.capability.name}-{pattern}-{position.__name__}"
    )
    for kernel in CPU_KERNELS
    for kind in sorted(kernel.capability.patterns, key=lambda kind: kind.__name__)
    for pattern in REACHES[kind]
    for position in sorted(kernel.capability.positions, key=lambda kind: kind.__name__)
]


def terms_of(position, heads, width):
    """The terms of a layer, whose table of distances, if it has one, is drawn from a fixed seed."""
    if isinstance(position, RelativePositionBias):
        table = np.random.default_rng(heads).normal(size=(position.buckets, heads))
        return AttentionBias(relative=RelativeBias(position, torch.from_numpy(table)))
    if not isinstance(position, Disentangled):
        return AttentionBias.of(position, heads)
    tables = np.random.default_rng(heads).normal(size=(2, 2 * position.span, heads, width))
    return AttentionBias(distances=DistanceBias(position, *torch.from_numpy(tables)))


LENGTHS = st.lists(st.sampled_from([1, 1, 2, 3, 3, 5, 17, 64]), min_size=1, max_size=6)


def plain_attention(q, k, v, lengths, pattern, position, marks):
    """Loops over sequences, heads, queries and keys, in float64; also the log-sum-exp."""
    out, sums = np.zeros_like(v), np.zeros(q.shape[:2])
    heads, width = q.shape[1:]
    bias = terms_of(position, heads, width)
    slopes, apart, relative, start = bias.slopes_H, bias.distances, bias.relative, 0
    scale = math.sqrt(width * (1 if apart is None else position.term_count))
    for length in lengths:
        seen = plain.times_seen(pattern, length, heads, marks[start : start + length])
        for h in range(heads):
            for i in range(length):
                keys, logits = [], []
                for j in range(length):
                    far = abs(i - j)
                    bias = 0.0 if slopes is None else -float(slopes[h]) * far
                    if relative is not None:
                        bias = float(relative.table_PH[plain.bucket(i - j, position), h])
                    if apart is not None:
                        row = plain.distance_row(i - j, position)
                        bias = q[start + i, h] @ apart.keys_PHK[row, h].numpy()
                        bias = (bias + k[start + j, h] @ apart.queries_PHK[row, h].numpy()) / scale
                    for _ in range(seen[h, i, j]):
                        keys.append(start + j)
                        logits.append(q[start + i, h] @ k[start + j, h] / scale + bias)
                weights = np.exp(np.array(logits) - max(logits))
                out[start + i, h] = (weights / weights.sum()) @ v[keys, h]
                sums[start + i, h] = max(logits) + math.log(weights.sum())
        start += length
    return out, sums


@pytest.mark.parametrize(("kernel", "pattern", "position"), CASES)
@examples(5)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
def test_kernel_equals_the_definition(kernel, pattern, position, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    marks = np.random.default_rng(seed).random(sum(lengths)) < 0.2
    layout = SequenceLayout.of_lengths(lengths, marks)
    q, k, v = (
        torch.randn(layout.token_count, 3, 4, dtype=torch.float64, generator=generator) for _ in range(3)
    )
    expected, sums = plain_attention(q.numpy(), k.numpy(), v.numpy(), lengths, pattern, position, marks)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        plan = kernel.plan(layout, pattern, torch.device("cpu"))
        wants_sums = kernel.capability.log_sum_exp
        o_THK, lse_TH = kernel.attend(
            q.to(dtype),
            k.to(dtype),
            v.to(dtype),
            plan,
            pattern=pattern,
            bias=terms_of(position, 3, 4),
            log_sum_exp=wants_sums,
        )
        assert o_THK.dtype == dtype
        np.testing.assert_allclose(o_THK.double().numpy(), expected, rtol=0, atol=tolerance)
        if wants_sums:
            np.testing.assert_allclose(lse_TH.double().numpy(), sums, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("kernel", "pattern", "position"), CASES)
def test_gradients_by_finite_differences(kernel, pattern, position):
    layout = SequenceLayout.of_lengths([2, 1, 2, 7], np.arange(12) % 6 == 1)
    tensors = [torch.randn(12, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    plan = kernel.plan(layout, pattern, torch.device("cpu"))
    bias = terms_of(position, 2, 2)
    assert torch.autograd.gradcheck(
        lambda q, k, v: kernel.attend(q, k, v, plan, pattern=pattern, bias=bias).o_THK,
        tensors,
        fast_mode=True,
    )


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in CPU_KERNELS if RelativePositionBias in kernel.capability.positions],
    ids=lambda kernel: kernel.capability.name,
)
def test_gradients_of_relative_biases(kernel):
    layout, position = SequenceLayout.of_lengths([2, 9, 2, 7]), RelativePositionBias(8, max_distance=6)
    q, k, v = torch.randn(3, 20, 2, 4, dtype=torch.float64)
    table = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)

    for pattern in (FullAttention(), CausalAttention(), SlidingWindow(3)):
        plan = kernel.plan(layout, pattern, torch.device("cpu"))

        def attend(table_PH, plan=plan, pattern=pattern):
            bias = AttentionBias(relative=RelativeBias(position, table_PH))
            return kernel.attend(q, k, v, plan, pattern=pattern, bias=bias).o_THK

        assert torch.autograd.gradcheck(attend, [table])


def test_relative_biases_are_refused_where_they_are_not_computed():
    asked = request(position=RelativePositionBias())
    for kernel in KERNELS:
        can = kernel.capability
        if RelativePositionBias not in can.positions and can.unavailable() is None:
            pattern = (
                FullAttention() if FullAttention in can.patterns else SlidingWindowGlobal(SlidingWindow(1))
            )
            possible = replace(asked, device=min(can.devices), dtype=min(can.dtypes), pattern=pattern)
            assert can.refusal(possible) == "has no RelativePositionBias term in its scores"
    q = torch.randn(4, 1, 8)
    layout, bias = SequenceLayout.of_lengths([4]), terms_of(RelativePositionBias(), 1, 8)
    for kernel in CPU_KERNELS:
        if RelativePositionBias not in kernel.capability.positions:
            plan = kernel.plan(layout, FullAttention(), torch.device("cpu"))
            with pytest.raises(KernelError):
                kernel.attend(q, q, q, plan, pattern=FullAttention(), bias=bias)
    assert choose(asked).capability.name == "sdpa-masked"
    assert choose(replace(asked, longest=2000)).capability.name == "rows"
    assert choose(replace(asked, device="cuda")).capability.name == "rows"


@pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda kernel: kernel.capability.name)
def test_dropout_keeps_the_mean_and_changes_single_results(kernel):
    torch.manual_seed(0)
    layout = SequenceLayout.of_lengths([40])
    q, k, v = torch.randn(3, 40, 2, 4)
    pattern = FullAttention() if FullAttention in kernel.capability.patterns else SlidingWindow(30)
    plan = kernel.plan(layout, pattern, torch.device("cpu"))
    position = NoPosition if NoPosition in kernel.capability.positions else Disentangled
    bias = terms_of(POSITIONS[position], 2, 4)
    run = lambda p: kernel.attend(q, k, v, plan, pattern=pattern, bias=bias, dropout=p).o_THK  # noqa: E731
    kept, dropped = run(0.0), torch.stack([run(0.5) for _ in range(400)])
    assert not torch.allclose(dropped[0], kept, atol=1e-3)
    torch.testing.assert_close(dropped.mean(0), kept, rtol=0, atol=0.2)


@pytest.mark.parametrize(
    "position", [Alibi(), Disentangled(7, buckets=4), Disentangled(3), RelativePositionBias(8, 5)]
)
@given(
    length=st.integers(1, 30),
    radius=st.integers(0, 6),
    dilation=st.integers(1, 3),
    cut=st.tuples(st.integers(0, 29), st.integers(0, 29)),
)
def test_a_tile_is_a_part_of_the_whole(position, length, radius, dilation, cut):
    pattern, bias = SlidingWindow(radius, dilation), terms_of(position, 2, 4)
    q, k = torch.randn(2, length, 2, 4, dtype=torch.float64)
    whole = scores(Tile.whole(length), q, k, bias)
    seen = allowed(Tile.whole(length), pattern, torch.device("cpu"))
    row, column = (min(c, length - 1) for c in cut)
    tile = Tile(row, length, column, length)
    torch.testing.assert_close(scores(tile, q[row:], k[column:], bias), whole[:, row:, column:])
    one = scores(tile, q[row:, 1:], k[column:, 1:], bias.of_head(1))
    torch.testing.assert_close(one, whole[1:, row:, column:])
    assert torch.equal(allowed(tile, pattern, torch.device("cpu")), seen[row:, column:])
    assert seen.diagonal().all()
    p_HRC, _ = probabilities(Tile.whole(length), q, k, pattern, bias)
    torch.testing.assert_close(p_HRC.sum(-1), torch.ones(2, length, dtype=torch.float64))
    assert (p_HRC[:, ~seen] == 0).all()


def test_window_drawn():
    drawn = [
        "".join("#" if seen else "." for seen in row)
        for row in allowed(Tile.whole(6), SlidingWindow(1, dilation=2), torch.device("cpu")).tolist()
    ]
    assert drawn == ["#.#...", ".#.#..", "#.#.#.", ".#.#.#", "..#.#.", "...#.#"]


def request(**changes):
    fields = {
        "device": "cpu",
        "dtype": "float32",
        "pattern": FullAttention(),
        "position": NoPosition(),
        "head_width": 64,
        "longest": 100,
    }
    return AttentionRequest(**(fields | changes))


def test_choose_takes_the_first_that_can():
    assert choose(request(longest=20)).capability.name == "sdpa"
    assert choose(request(pattern=SlidingWindow(4))).capability.name == "tiled"
    assert choose(request(pattern=SlidingWindow(4), position=Alibi())).capability.name == "tiled"
    assert choose(request(log_sum_exp=True, longest=20)).capability.name == "tiled"
    assert choose(request(), "reference").capability.name == "reference"


@pytest.mark.parametrize(
    ("changes", "name", "reasons"),
    [
        ({"pattern": BlockSparse(8)}, "sdpa", ["sdpa has no BlockSparse attention"]),
        ({"position": Disentangled(8)}, "sdpa", ["sdpa has no Disentangled term"]),
        ({"dtype": "int8"}, None, ["sdpa takes bfloat16, float16, float32, float64, not int8"]),
        ({"device": "tpu"}, None, ["sdpa runs on cpu and cuda, not on tpu"]),
        ({"pattern": SlidingWindow(4)}, "sdpa", ["sdpa has no SlidingWindow attention"]),
        ({"log_sum_exp": True}, "sdpa", ["sdpa gives no log-sum-exp"]),
        ({}, "flash", ["there is no kernel 'flash'; there are ", " sdpa, ", " reference"]),
    ],
)
def test_choose_refuses_with_every_reason(changes, name, reasons):
    with pytest.raises(KernelError) as refused:
        choose(request(**changes), name)
    for reason in reasons:
        assert reason in str(refused.value)


def test_sdpa_refuses_what_its_record_does_not_list():
    sdpa = choose(request(), "sdpa")
    layout = SequenceLayout.of_lengths([2])
    q = torch.randn(2, 1, 4)
    plan = sdpa.plan(layout, FullAttention(), torch.device("cpu"))
    with pytest.raises(KernelError):
        sdpa.attend(q, q, q, plan, pattern=SlidingWindow(1), bias=AttentionBias())
    with pytest.raises(KernelError):
        sdpa.attend(q, q, q, plan, pattern=FullAttention(), bias=AttentionBias.of(Alibi(), 1))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"longest": 31}, "sdpa"),
        ({"longest": 32}, "tiled"),
        ({"longest": 63, "dtype": "bfloat16"}, "sdpa"),
        ({"longest": 64, "dtype": "bfloat16"}, "tiled"),
        ({"longest": 4096, "gradients": True}, "sdpa"),
        ({"longest": 4096, "dtype": "float64"}, "sdpa"),
        ({"longest": 4096, "pattern": SlidingWindow(64), "gradients": True}, "tiled"),
    ],
)
def test_choose_takes_what_pays_for_lengths_dtypes_and_gradients(changes, name):
    assert choose(request(**changes)).capability.name == name


def test_sdpa_moves_nothing_when_equal_lengths_adjoin():
    sdpa = choose(request(), "sdpa")
    sorted_plan = sdpa.plan(
        SequenceLayout.of_lengths([5, 5, 3, 3, 3, 1]), FullAttention(), torch.device("cpu")
    )
    assert sorted_plan.tokens_T is None
    assert sorted_plan.shapes == ((2, 5), (3, 3), (1, 1))
    mixed_plan = sdpa.plan(SequenceLayout.of_lengths([5, 3, 5]), FullAttention(), torch.device("cpu"))
    assert sorted(mixed_plan.shapes) == [(1, 3), (2, 5)]
    assert torch.equal(mixed_plan.tokens_T[mixed_plan.restore_T], torch.arange(13))


@pytest.mark.parametrize(
    "pattern", [FullAttention(), CausalAttention(), SlidingWindow(3), BlockSparse(4, random_blocks=1)]
)
def test_blocks_of_rows_are_exact_however_they_fall(pattern, monkeypatch):
    from unmask.kernels import reference as rows

    kernel, reference = choose(request(), "rows"), choose(request(), "reference")
    layout = SequenceLayout.of_lengths([41, 1, 7])
    q, k, v = torch.randn(3, 49, 2, 4, dtype=torch.float64)
    bias = AttentionBias.of(Alibi(), 2)
    expected = reference.attend(q, k, v, layout, pattern=pattern, bias=bias, log_sum_exp=True)
    for scores_at_once in (1, 100, 1000):
        monkeypatch.setattr(rows, "SCORES_AT_ONCE", scores_at_once)
        found = kernel.attend(q, k, v, layout, pattern=pattern, bias=bias, log_sum_exp=True)
        torch.testing.assert_close(found.o_THK, expected.o_THK)
        torch.testing.assert_close(found.lse_TH, expected.lse_TH)


PEAK_OF_ROWS = """
import re, sys
import torch
from unmask.kernels import AttentionBias, AttentionRequest, choose
from unmask.spec import Alibi, SlidingWindow
from unmask.text import SequenceLayout

def high_water():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def run(length):
    q, k, v = torch.randn(3, length, 12, 16)
    layout, bias = SequenceLayout.of_lengths([length]), AttentionBias.of(Alibi(), 12)
    pattern = SlidingWindow(64)
    kernel = choose(AttentionRequest("cpu", "float32", pattern, Alibi(), 16, length), "rows")
    with torch.inference_mode():
        kernel.attend(q, k, v, layout, pattern=pattern, bias=bias, log_sum_exp=True)

run(64)
before = high_water()
run(4096)
print(high_water() - before)
sys.exit()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of Linux")
def test_rows_hold_blocks_and_not_the_square(apart):
    ran = apart.run(before=PEAK_OF_ROWS)
    # One square of scores of 12 heads would be 768 MiB; what a block leaves behind must be used again, which
    # takes 200 to 320 MiB, as the allocator has it.
    assert float(ran.out) < 500


def test_the_reference_is_torchs_attention_of_one_text():
    q_NHK, k_NHK, v_NHK = torch.randn(3, 5, 2, 4, dtype=torch.float64).unbind()
    layout = SequenceLayout.of_lengths([5])
    o_NHK, _ = choose(request(), "reference").attend(
        q_NHK, k_NHK, v_NHK, layout, pattern=FullAttention(), bias=AttentionBias()
    )
    q_1HNK, k_1HNK, v_1HNK = (x_NHK.transpose(0, 1)[None] for x_NHK in (q_NHK, k_NHK, v_NHK))
    expected = torch.nn.functional.scaled_dot_product_attention(q_1HNK, k_1HNK, v_1HNK)
    torch.testing.assert_close(o_NHK, expected[0].transpose(0, 1))
