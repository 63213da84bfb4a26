"""Encoders without positions treat a sentence as a bag of words."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import one_of
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import run_ids
from unmask.interpret.words.words import Words, words
from unmask.spec import EncoderSpec, FullAttention, SoftmaxAttention
from unmask.spec.attention import NoPosition
from unmask.text import Encoding

TRIES = 100
"""Permutations that are tried; of a text with different words, one of the first few differs from it."""


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

    Words are moved whole, with all their tokens. Self-attention treats its input as a set: without positions,
    permuting the tokens only permutes their states (Vaswani et al. 2017, 3.5).

    Raises:
        InvalidRequest: fewer than two words can be permuted, or all of them are equal.
    """
    grouped = words(encoding)
    movable = [word for word in range(len(grouped)) if not grouped.special[word]]
    generator = np.random.default_rng(seed)
    for _ in range(TRIES):
        order = _moved(grouped, dict(zip(movable, generator.permutation(movable).tolist(), strict=True)))
        if (encoding.ids[order] != encoding.ids).any():
            return _compared(encoder, encoding, order)
    # All words are equal, or are one token repeated.
    raise InvalidRequest("the text has fewer than two different words; give at least two to shuffle")


def swapped(encoder: Encoder, encoding: Encoding, first: int, other: int) -> Shuffled:
    """The same comparison for a text in which two words change places; words count as in `words`.

    Raises:
        InvalidRequest: there is no such word.
    """
    grouped = words(encoding)
    for word in (first, other):
        one_of("word", word, len(grouped), "this text has words")
    return _compared(encoder, encoding, _moved(grouped, {first: other, other: first}))


def _moved(grouped: Words, to: Mapping[int, int]) -> NDArray[np.int64]:
    """The order of tokens when the place of each word is taken by another one."""
    tokens = [np.flatnonzero(grouped.of_token == to.get(word, word)) for word in range(len(grouped))]
    return np.concatenate(tokens)


def _compared(encoder: Encoder, encoding: Encoding, order: NDArray[np.int64]) -> Shuffled:
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
