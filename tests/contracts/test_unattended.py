"""Tokens that no token attends to: by the definition, by every kernel that leaves them out, in an encoder."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.test_kernels import POSITIONS, terms_of
from tests.support.examples import examples
from tests.support.kernels import CPU_KERNELS
from tests.support.specs import SPECS, random_encoder
from unmask.errors import InvalidRequest, KernelError
from unmask.kernels import KERNELS, AttentionRequest, choose
from unmask.spec import (
    BlockSparse,
    FullAttention,
    LinearAttention,
    NoPosition,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text import PackedBatch, SequenceLayout

PATTERNS = (FullAttention(), SlidingWindow(4), SlidingWindowGlobal(SlidingWindow(3), own_projections=False))
CASES = [
    pytest.param(
        kernel, pattern, POSITIONS[position], id=f"{kernel.capability.name}-{pattern}-{position.__name__}"
    )
    for kernel in CPU_KERNELS
    if kernel.capability.unattended
    for pattern in PATTERNS
    if type(pattern) in kernel.capability.patterns
    for position in sorted(kernel.capability.positions, key=lambda kind: kind.__name__)
]


def marked(lengths, seed):
    """About a third of the tokens; the first of each sequence is attended to."""
    marks = np.random.default_rng(seed).random(sum(lengths)) < 0.35
    marks[np.cumsum([0, *lengths[:-1]])] = False
    return marks


@pytest.mark.parametrize(("kernel", "pattern", "position"), CASES)
@examples(6)
@given(lengths=st.lists(st.sampled_from([1, 2, 5, 5, 12]), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_the_others_keep_their_scores_and_share_what_is_left(kernel, pattern, position, lengths, seed):
    """The reference without marks gives every score; a row then mixes the keys that remain."""
    marks, heads, width = marked(lengths, seed), 3, 4
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, sum(lengths), heads, width, dtype=torch.float64, generator=generator)
    layout = SequenceLayout.of_lengths(lengths, unattended_T=marks)
    bias, cpu = terms_of(position, heads, width), torch.device("cpu")
    mixed = kernel.attend(q, k, v, kernel.plan(layout, pattern, cpu), pattern=pattern, bias=bias).o_THK
    reference = KERNELS[-1]
    plain = SequenceLayout.of_lengths(lengths)
    plan = reference.plan(plain, pattern, cpu)
    # With values 1 for attended keys, the mixture is the share that they have without marks.
    seen = torch.from_numpy(~marks).double()[:, None, None]
    kept = reference.attend(q, k, v * seen, plan, pattern=pattern, bias=bias).o_THK
    share = reference.attend(q, k, seen.expand_as(v), plan, pattern=pattern, bias=bias).o_THK
    rows = share[:, 0, 0] > 1e-9  # a row whose window holds no attended key has no result
    assert rows.any()
    torch.testing.assert_close(mixed[rows], (kept / share)[rows], rtol=1e-9, atol=1e-11)


def test_kernels_without_such_a_mask_refuse():
    asked = AttentionRequest("cpu", "float32", FullAttention(), NoPosition(), 64, 32, unattended=True)
    for kernel in KERNELS:
        can = kernel.capability
        if can.unattended or can.unavailable() is not None:
            continue
        pattern = FullAttention() if FullAttention in can.patterns else SlidingWindowGlobal(SlidingWindow(1))
        positions = can.positions - {NoPosition}
        position = NoPosition() if NoPosition in can.positions else POSITIONS[min(positions, key=str)]
        possible = replace(
            asked, device=min(can.devices), dtype=min(can.dtypes), pattern=pattern, position=position
        )
        assert can.refusal(replace(possible, unattended=False)) is None, can.name
        assert can.refusal(possible) == "attends to every token, and some are not to be attended to"
    assert {kernel.capability.name for kernel in KERNELS if kernel.capability.unattended} == {
        "sdpa-masked",
        "rows",
        "reference",
    }
    assert choose(asked).capability.name == "sdpa-masked"
    assert choose(replace(asked, longest=5000)).capability.name == "rows"
    assert choose(replace(asked, device="cuda")).capability.name == "rows"
    with pytest.raises(KernelError, match="not to be attended to"):
        choose(asked, "tiled")


def softmax_without_convolution(spec):
    return not (spec.convolution or spec.embedding.reads_neighbors) and not any(
        isinstance(layer.mixer, LinearAttention) or layer.mixer.span_convolution for layer in spec.layers
    )


def random_blocks(spec):
    """Their places depend on the length of a sequence, so that marked tokens change them."""
    return any(isinstance(getattr(layer.mixer, "pattern", None), BlockSparse) for layer in spec.layers)


@pytest.mark.parametrize("name", sorted(name for name, spec in SPECS.items() if not random_blocks(spec)))
def test_an_encoder_reads_the_others_as_if_the_marked_tokens_were_absent(name):
    """Marked tokens at the end change no other state, except where blocks or a window's gaps count them."""
    spec = SPECS[name]
    encoder = random_encoder(spec, dtype=torch.float64).eval()
    ids = [[5, 3, 7, 2, 6, 1], [4, 2, 3]]
    longer = [[*ids[0], 8, 8], ids[1]]
    batch = PackedBatch.of_ids(longer, unattended=[[6, 7], []])
    own = any(
        isinstance(getattr(layer.mixer, "pattern", None), SlidingWindowGlobal)
        and layer.mixer.pattern.own_projections
        for layer in spec.layers
    )
    if own or not softmax_without_convolution(spec):
        with pytest.raises((InvalidRequest, KernelError), match="not to be attended to"):
            encoder.encode(batch)
        return
    with torch.inference_mode():
        alone = encoder.encode(PackedBatch.of_ids(ids))
        states = encoder.encode(batch)
    torch.testing.assert_close(states[:6], alone[:6], rtol=0, atol=1e-9)
    torch.testing.assert_close(states[8:], alone[6:], rtol=0, atol=1e-9)
    assert torch.isfinite(states[6:8]).all()


@pytest.mark.parametrize(
    ("marks", "sentence"),
    [
        ([True, True, False], "no token of a sequence"),
        ([False] * 4, "4 tokens are marked as attended to or not"),
    ],
)
def test_marks_that_do_not_fit_are_refused(marks, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        SequenceLayout.of_lengths([2, 1], unattended_T=np.array(marks))
    with pytest.raises(InvalidRequest, match="unattended token 3 is not in a sequence of 3"):
        PackedBatch.of_ids([[1, 2, 3]], unattended=[[3]])
