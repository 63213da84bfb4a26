"""Every registered kernel against the definition, on layouts that hypothesis draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import KernelError
from unmask.model.kernels import (
    KERNELS,
    Need,
    ScoreTerms,
    Tile,
    allowed,
    choose,
    probabilities,
    scores,
)
from unmask.model.spec import Alibi, Blocks, Disentangled, NoPosition, Whole, Window
from unmask.text import SequenceLayout

REACHES = {Whole: [Whole()], Window: [Window(0), Window(3), Window(2, dilation=3), Window(200)]}
POSITIONS = {NoPosition: NoPosition(), Alibi: Alibi()}

CASES = [
    pytest.param(
        kernel, reach, POSITIONS[position], id=f"{kernel.capability.name}-{reach}-{position.__name__}"
    )
    for kernel in KERNELS
    for kind in kernel.capability.reaches
    for reach in REACHES[kind]
    for position in kernel.capability.positions
]

LENGTHS = st.lists(st.sampled_from([1, 1, 2, 3, 3, 5, 17, 64]), min_size=1, max_size=6)


def plain_attention(q, k, v, lengths, reach, position):
    """Loops over sequences, heads, queries and keys, in float64; also the log-sum-exp."""
    out, sums = np.zeros_like(v), np.zeros(q.shape[:2])
    heads, width = q.shape[1:]
    slopes = ScoreTerms.of(position, heads).slopes_H
    start = 0
    for length in lengths:
        for h in range(heads):
            for i in range(length):
                keys, logits = [], []
                for j in range(length):
                    far = abs(i - j)
                    if isinstance(reach, Window) and (
                        far > reach.radius * reach.dilation or far % reach.dilation
                    ):
                        continue
                    bias = 0.0 if slopes is None else -float(slopes[h]) * far
                    keys.append(start + j)
                    logits.append(q[start + i, h] @ k[start + j, h] / math.sqrt(width) + bias)
                weights = np.exp(np.array(logits) - max(logits))
                out[start + i, h] = (weights / weights.sum()) @ v[keys, h]
                sums[start + i, h] = max(logits) + math.log(weights.sum())
        start += length
    return out, sums


@pytest.mark.parametrize(("kernel", "reach", "position"), CASES)
@settings(max_examples=8, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
def test_kernel_equals_the_definition(kernel, reach, position, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    layout = SequenceLayout.of_lengths(lengths)
    q, k, v = (
        torch.randn(layout.token_count, 3, 4, dtype=torch.float64, generator=generator) for _ in range(3)
    )
    expected, sums = plain_attention(q.numpy(), k.numpy(), v.numpy(), lengths, reach, position)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        plan = kernel.plan(layout, reach, torch.device("cpu"))
        wants_sums = kernel.capability.log_sum_exp
        o_THK, lse_TH = kernel.attend(
            q.to(dtype),
            k.to(dtype),
            v.to(dtype),
            plan,
            reach=reach,
            terms=ScoreTerms.of(position, 3),
            log_sum_exp=wants_sums,
        )
        assert o_THK.dtype == dtype
        np.testing.assert_allclose(o_THK.double().numpy(), expected, rtol=0, atol=tolerance)
        if wants_sums:
            np.testing.assert_allclose(lse_TH.double().numpy(), sums, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("kernel", "reach", "position"), CASES)
def test_gradients_by_finite_differences(kernel, reach, position):
    layout = SequenceLayout.of_lengths([3, 1, 3, 5])
    tensors = [torch.randn(12, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    plan = kernel.plan(layout, reach, torch.device("cpu"))
    terms = ScoreTerms.of(position, 2)
    assert torch.autograd.gradcheck(
        lambda q, k, v: kernel.attend(q, k, v, plan, reach=reach, terms=terms).o_THK, tensors
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.capability.name)
def test_dropout_keeps_the_mean_and_changes_single_results(kernel):
    torch.manual_seed(0)
    layout = SequenceLayout.of_lengths([40])
    q, k, v = torch.randn(3, 40, 2, 4)
    plan = kernel.plan(layout, Whole(), torch.device("cpu"))
    run = lambda p: kernel.attend(q, k, v, plan, reach=Whole(), terms=ScoreTerms(), dropout=p).o_THK  # noqa: E731
    kept, dropped = run(0.0), torch.stack([run(0.5) for _ in range(400)])
    assert not torch.allclose(dropped[0], kept, atol=1e-3)
    torch.testing.assert_close(dropped.mean(0), kept, rtol=0, atol=0.2)


@given(
    length=st.integers(1, 30),
    radius=st.integers(0, 6),
    dilation=st.integers(1, 3),
    cut=st.tuples(st.integers(0, 29), st.integers(0, 29)),
)
def test_a_tile_is_a_piece_of_the_whole(length, radius, dilation, cut):
    reach, terms = Window(radius, dilation), ScoreTerms.of(Alibi(), 2)
    q, k = torch.randn(2, length, 2, 4, dtype=torch.float64)
    whole = scores(Tile.whole(length), q, k, terms)
    seen = allowed(Tile.whole(length), reach, torch.device("cpu"))
    row, column = (min(c, length - 1) for c in cut)
    tile = Tile(row, length, column, length)
    torch.testing.assert_close(scores(tile, q[row:], k[column:], terms), whole[:, row:, column:])
    assert torch.equal(allowed(tile, reach, torch.device("cpu")), seen[row:, column:])
    assert seen.diagonal().all()
    p_HRC, _ = probabilities(Tile.whole(length), q, k, reach, terms)
    torch.testing.assert_close(p_HRC.sum(-1), torch.ones(2, length, dtype=torch.float64))
    assert (p_HRC[:, ~seen] == 0).all()


def test_window_drawn():
    drawn = [
        "".join("#" if seen else "." for seen in row)
        for row in allowed(Tile.whole(6), Window(1, dilation=2), torch.device("cpu")).tolist()
    ]
    assert drawn == ["#.#...", ".#.#..", "#.#.#.", ".#.#.#", "..#.#.", "...#.#"]


def need(**changes):
    fields = {"device": "cpu", "dtype": "float32", "reach": Whole(), "position": NoPosition()}
    return Need(**(fields | changes))


def test_choose_takes_the_first_that_can():
    assert choose(need()).capability.name == "sdpa"
    assert choose(need(reach=Window(4))).capability.name == "reference"
    assert choose(need(log_sum_exp=True)).capability.name == "reference"
    assert choose(need(), "reference").capability.name == "reference"


@pytest.mark.parametrize(
    ("changes", "name", "reasons"),
    [
        ({"reach": Blocks(8)}, None, ["sdpa has no Blocks reach", "reference has no Blocks reach"]),
        ({"position": Disentangled(8)}, None, ["sdpa has no Disentangled term", "reference has no Dis"]),
        ({"dtype": "int8"}, None, ["sdpa takes bfloat16, float16, float32, float64, not int8"]),
        ({"device": "tpu"}, None, ["sdpa runs on cpu and cuda, not on tpu"]),
        ({"reach": Window(4)}, "sdpa", ["sdpa has no Window reach"]),
        ({"log_sum_exp": True}, "sdpa", ["sdpa gives no log-sum-exp"]),
        ({}, "flash", ["there is no kernel 'flash'; there are sdpa, reference"]),
    ],
)
def test_choose_refuses_with_every_reason(changes, name, reasons):
    with pytest.raises(KernelError) as refused:
        choose(need(**changes), name)
    for reason in reasons:
        assert reason in str(refused.value)


def test_sdpa_refuses_what_its_record_does_not_list():
    sdpa = choose(need(), "sdpa")
    layout = SequenceLayout.of_lengths([2])
    q = torch.randn(2, 1, 4)
    plan = sdpa.plan(layout, Whole(), torch.device("cpu"))
    with pytest.raises(KernelError):
        sdpa.attend(q, q, q, plan, reach=Window(1), terms=ScoreTerms())
    with pytest.raises(KernelError):
        sdpa.attend(q, q, q, plan, reach=Whole(), terms=ScoreTerms.of(Alibi(), 1))


def test_sdpa_moves_nothing_when_equal_lengths_adjoin():
    sdpa = choose(need(), "sdpa")
    sorted_plan = sdpa.plan(SequenceLayout.of_lengths([5, 5, 3, 3, 3, 1]), Whole(), torch.device("cpu"))
    assert sorted_plan.tokens_T is None
    assert sorted_plan.shapes == ((2, 5), (3, 3), (1, 1))
    mixed_plan = sdpa.plan(SequenceLayout.of_lengths([5, 3, 5]), Whole(), torch.device("cpu"))
    assert sorted(mixed_plan.shapes) == [(1, 3), (2, 5)]
    assert torch.equal(mixed_plan.tokens_T[mixed_plan.restore_T], torch.arange(13))
