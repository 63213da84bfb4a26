"""No text can tell what it runs beside: alone, in any batch, in any order, its states are the same."""

from copy import copy, deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.kernels import CPU_KERNELS
from tests.support.specs import SPECS, VOCABULARY, global_tokens, random_encoder
from unmask.encoder import heads
from unmask.errors import InvalidRequest, KernelError
from unmask.spec import (
    BlockSparse,
    FullAttention,
    NoPosition,
    PooledVector,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.text import PackedBatch, SequenceLayout, token_budget_batches

KERNEL_NAMES = [kernel.capability.name for kernel in CPU_KERNELS]
ENCODERS = {name: random_encoder(spec) for name, spec in SPECS.items()}
IN_FLOAT64 = {name: deepcopy(encoder).double() for name, encoder in ENCODERS.items()}
"""Rounding in float32 depends on where a text begins, and norms of small states enlarge it without bound."""

TEXT = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)


def states(encoder, texts):
    segments = [[i % 2 for i in range(len(text))] for text in texts]
    batch = PackedBatch.of_ids(texts, segments, [global_tokens(len(text)) for text in texts])
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
    return [x_TD[batch.layout.rows(s)] for s in range(len(texts))]


def can_run(kernel, spec, longest):
    record = next(one.capability for one in CPU_KERNELS if one.capability.name == kernel)
    return all(
        type(reach_among(layer.mixer.pattern, longest)) in record.patterns
        and (NoPosition if isinstance(layer.mixer.position, Rotary) else type(layer.mixer.position))
        in record.positions
        and (record.log_sum_exp or not layer.mixer.sinks)
        for layer in spec.layers
        if isinstance(layer.mixer, SoftmaxAttention)
    )


def reach_among(pattern, longest):
    short = (isinstance(pattern, BlockSparse) and longest <= pattern.whole_up_to) or (
        isinstance(pattern, SlidingWindow) and pattern.dilation == 1 and longest <= pattern.radius + 1
    )
    return FullAttention() if short else pattern


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("name", SPECS)
@examples(20)
@given(data=st.data())
def test_states_do_not_depend_on_the_batch(name, kernel, data):
    encoder = copy(IN_FLOAT64[name])  # the others' kernel stays as it is
    encoder.kernel = kernel
    texts = data.draw(st.lists(TEXT, min_size=2, max_size=6), label="texts")
    order = data.draw(st.permutations(range(len(texts))), label="order")
    if not can_run(kernel, SPECS[name], max(map(len, texts))):
        with pytest.raises(KernelError, match=f"{kernel} (has|gives) no"):
            states(encoder, texts)
        return
    together = states(encoder, texts)
    shuffled = states(encoder, [texts[i] for i in order])
    for place, original in enumerate(order):
        torch.testing.assert_close(shuffled[place], together[original], rtol=0, atol=1e-10)
    for text, expected in zip(texts, together, strict=True):
        torch.testing.assert_close(states(encoder, [text])[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SPECS)
def test_a_changed_neighbor_changes_nothing(name):
    encoder = ENCODERS[name]
    text, one, other = [3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5]
    beside_one, beside_other = (states(encoder, [n, text, n])[1] for n in (one, other))
    # Rounding in an expert's product depends on how many tokens chose it.
    tolerance = 1e-6 if name in ("experts", "sinks") else 0
    torch.testing.assert_close(beside_one, beside_other, rtol=0, atol=tolerance)


def test_token_types_matter():
    encoder = ENCODERS["post-norm"]
    with torch.inference_mode():
        zero, one = (encoder.encode(PackedBatch.of_ids([[4, 5]], [[s, s]])) for s in (0, 1))
    assert not torch.allclose(zero, one, atol=1e-3)


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 500))
@example([3, 4, 3], 10)
def test_passes_cover_every_text_once_within_the_budget(lengths, budget):
    array = np.array(lengths, dtype=np.int64)
    made = [part.tolist() for part in token_budget_batches(array, budget)]
    assert sorted(i for part in made for i in part) == list(range(len(lengths)))
    for part in made:
        assert len(part) == 1 or array[part].sum() <= budget
    for part, after in pairwise(made):
        assert array[part].sum() + lengths[after[0]] > budget, "the next text had room"
    flat = [lengths[i] for part in made for i in part]
    assert flat == sorted(flat, reverse=True)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_layout(lengths):
    layout = SequenceLayout.of_lengths(lengths)
    assert layout.lengths.tolist() == lengths
    assert layout.token_count == sum(lengths)
    assert layout.positions_T.tolist() == [p for length in lengths for p in range(length)]
    assert layout.sequence_of_T.tolist() == [s for s, length in enumerate(lengths) for _ in range(length)]


@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 2], [-1]])
def test_a_sequence_has_a_token(lengths):
    with pytest.raises(InvalidRequest):
        SequenceLayout.of_lengths(lengths)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_pooling(lengths, seed):
    layout = SequenceLayout.of_lengths(lengths)
    x_TD = torch.randn(layout.token_count, 4, generator=torch.Generator().manual_seed(seed))
    pieces = [x_TD[layout.rows(s)] for s in range(len(lengths))]
    expected = {
        "mean": torch.stack([p.mean(0) for p in pieces]),
        "cls": torch.stack([p[0] for p in pieces]),
        "max": torch.stack([p.amax(0) for p in pieces]),
        "mean_sqrt_len": torch.stack([p.sum(0) / len(p) ** 0.5 for p in pieces]),
    }
    for mode, vectors in expected.items():
        torch.testing.assert_close(heads.pool(x_TD, layout, mode), vectors)
    both = heads.embed(x_TD, layout, PooledVector(("max", "mean"), normalize=True))
    joined = torch.cat([expected["max"], expected["mean"]], dim=-1)
    torch.testing.assert_close(both, joined / joined.norm(dim=-1, keepdim=True))


def test_encoder_refuses_what_it_cannot_read():
    encoder = ENCODERS["post-norm"]
    with pytest.raises(InvalidRequest, match=r"65 tokens.*reaches 64"):
        encoder.encode(PackedBatch.of_ids([[1] * 65]))
    with pytest.raises(InvalidRequest, match="layout holds 3 tokens"):
        encoder(torch.zeros(4, dtype=torch.long), SequenceLayout.of_lengths([3]))
