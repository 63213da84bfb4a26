"""Arithmetic of a training step: matrices against torch's own counter, keys against a count one by one."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.support.specs import SPECS, VOCABULARY
from tests.training.toy import with_heads
from unmask.encoder.encoder import Encoder
from unmask.kernels.tile import Tile, allowed
from unmask.spec import (
    CausalAttention,
    FullAttention,
    LinearAttention,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.text.batch import SequenceLayout
from unmask.training.run.flops import Work, keys, peak_flops, peak_memory

LENGTHS = np.array([1, 2, 7, 12, 31])


@pytest.mark.parametrize(
    "pattern",
    [
        FullAttention(),
        CausalAttention(),
        SlidingWindow(0),
        SlidingWindow(3),
        SlidingWindow(30),
        SlidingWindow(100),
        SlidingWindowGlobal(SlidingWindow(4)),
    ],
)
def test_keys_are_those_that_queries_see(pattern):
    counted = 0
    for length in LENGTHS.tolist():
        seen = allowed(Tile.whole(length), pattern, torch.device("cpu"))
        counted += length**2 if seen is None else int(seen.sum())
    assert keys(SoftmaxAttention(2, 4, pattern=pattern), LENGTHS) == counted


def test_keys_of_a_window_with_gaps():
    """For lengths that the gap divides it is exact."""
    pattern = SlidingWindow(2, dilation=3)
    lengths = np.array([3, 6, 12, 30])
    counted = 0
    for length in lengths.tolist():
        seen = allowed(Tile.whole(length), pattern, torch.device("cpu"))
        assert seen is not None
        counted += int(seen.sum())
    assert keys(SoftmaxAttention(2, 4, pattern=pattern), lengths) == counted


def attention(encoder, lengths):
    """Its part of the step, three times 4 D for each key that a query sees."""
    mixers = [layer.mixer for layer in encoder.spec.layers]
    return sum(12.0 * one.heads * one.head_width * keys(one, lengths) for one in mixers)


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "alibi-shared"])
def test_matrices_are_those_that_torch_counts(name):
    spec = SPECS[name]
    encoder = Encoder(spec)
    layout = SequenceLayout.of_lengths([one for one in LENGTHS if one <= (spec.max_tokens or 99)])
    ids_T = torch.randint(VOCABULARY, (layout.token_count,))
    with FlopCounterMode(display=False) as counter:
        encoder(ids_T, layout).sum().backward()
    products = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    counted = sum(flops for op, flops in products.items() if op in ("aten.mm", "aten.addmm"))
    lengths = layout.lengths
    assert Work(encoder).of(lengths, 0) - attention(encoder, lengths) == counted


def test_predicted_words_count_their_vocabulary_and_a_teacher_its_forward_pass():
    encoder = Encoder(with_heads(SPECS["post-norm"]))
    work, lengths = Work(encoder), np.array([5, 6])
    width = encoder.spec.width
    head = VOCABULARY * width + width * width
    assert work.of(lengths, 7) - work.of(lengths, 0) == 6 * 7 * head
    both = nn.ModuleList([encoder, Encoder(encoder.spec).requires_grad_(False)])
    assert Work(both).of(lengths, 7) == pytest.approx(work.of(lengths, 7) * 4 / 3)


def test_a_linear_mixer_is_linear():
    mixer = LinearAttention(2, 4, "elu+1")
    assert keys(mixer, np.array([10, 30])) == keys(mixer, np.array([20, 20])) == 160


def test_what_this_machine_can_do():
    before = torch.get_rng_state()
    assert 1e8 < peak_flops(torch.device("cpu"), torch.float32, 0.05) < 1e15
    assert torch.equal(torch.get_rng_state(), before)
    assert 1e7 < peak_memory(torch.device("cpu")) < 1e12
