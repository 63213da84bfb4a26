"""Encoders without positions treat a sentence as a bag of words."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.recorded_text import run_ids
from unmask.model.encoder import Encoder
from unmask.model.spec import EncoderSpec, FullAttention, SoftmaxAttention
from unmask.model.spec.attention import NoPosition
from unmask.text import Encoding


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A text and the same tokens in another order."""

    order: NDArray[np.int64]
    """(N,): position i of the shuffled text has token ``order[i]`` of the text; special tokens are not
    moved."""
    difference: NDArray[np.float64]
    """(L + 1, N): relative change of each token's state, ||a - b|| / ||a||, by layer; row 0 is the input of
    the first layer. Tokens are in the order of the original text."""
    final: NDArray[np.float64]
    """(N,): the same change for the encoder's output."""
    without_positions: bool
    """Whether the encoder has no position information, so that by symmetry every difference is rounding."""


def shuffled(encoder: Encoder, encoding: Encoding, *, seed: int = 0) -> Shuffled:
    """Run a text and a random permutation of its words, and compare the states of each token.

    Self-attention treats its input as a set: without positions, permuting the tokens only permutes their
    states (Vaswani et al. 2017, 3.5).

    Raises:
        InvalidRequest: fewer than two tokens can be permuted, or all of them are equal.
    """
    movable = np.flatnonzero(~encoding.special)
    if len(set(encoding.ids[movable].tolist())) < 2:
        raise InvalidRequest("the text has fewer than two different words; give at least two to shuffle")
    generator = np.random.default_rng(seed)
    order = np.arange(len(encoding))
    while (encoding.ids[order] == encoding.ids).all():
        order[movable] = generator.permutation(movable)
    states = run_ids(encoder, [encoding.ids, encoding.ids[order]])
    count = len(encoding)
    rows = []
    for state in states:
        a_ND, b_ND = state[:count][order], state[count:]
        moved = np.empty(count)
        moved[order] = ((a_ND - b_ND).norm(dim=-1) / a_ND.norm(dim=-1).clamp_min(1e-300)).numpy()
        rows.append(moved)
    return Shuffled(order, np.stack(rows[:-1]), rows[-1], is_unordered(encoder.spec))


def is_unordered(spec: EncoderSpec) -> bool:
    """Whether the encoder is independent of word order: no positions, no windows, no convolution."""
    positions = spec.embedding.positions
    if spec.convolution is not None or (positions is not None and positions.added):
        return False
    mixers = [layer.mixer for layer in spec.layers]
    return all(
        not isinstance(mixer, SoftmaxAttention)
        or (isinstance(mixer.position, NoPosition) and isinstance(mixer.pattern, FullAttention))
        for mixer in mixers
    )
