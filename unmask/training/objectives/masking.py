"""Which tokens are masked, and what replaces them.

Axes: U units that are masked together; W words.
"""

from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.text.batch import SequenceLayout
from unmask.training.table import settings
from unmask.training.vocabulary import Vocabulary

MaskUnit = Literal["token", "word", "ngram"]
"""What is masked together: a token; all tokens of a word; one to ``longest`` consecutive words."""

Replacement = Literal["bert", "mask", "electra"]

INSTEAD: dict[Replacement, tuple[float, float]] = {
    "bert": (0.8, 0.1),
    "mask": (1.0, 0.0),
    "electra": (0.85, 0.0),
}
"""Of the selected tokens, the share replaced by the mask token and the share replaced by a random token; the
rest is unchanged. As in BERT (Devlin et al. 2019); NeoBERT and DeBERTa v3; ELECTRA's code (Clark et al.
2020)."""


@settings
class MaskingSpec:
    """How tokens are selected and masked."""

    rate: float = 0.15
    """Share of a text's tokens that is selected."""
    final_rate: float | None = None
    """The rate changes linearly from ``rate`` to this over the run (Ankner et al. 2023); None keeps it
    constant."""
    replacement: Replacement = "bert"
    mask_unit: MaskUnit = "token"
    """In scripts without spaces between words, such as Chinese and Thai, a token that begins with a letter is
    a word."""
    longest: int = 3
    """Words in the longest n-gram; n words have a probability proportional to 1 / n (Lan et al. 2020)."""
    static_masks: int = 0
    """Static masking: every chunk of text has this many fixed masks (10 in BERT's data), one of which is
    drawn. 0 draws a new mask every time (Liu et al. 2019)."""

    def __post_init__(self) -> None:
        for name, rate in (("rate", self.rate), ("final_rate", self.final_rate)):
            if rate is not None and not 0 < rate < 1:
                raise InvalidRequest(f"masking {name} is {rate}; it must lie between 0 and 1")
        if self.longest < 1 or self.static_masks < 0:
            raise InvalidRequest(
                f"longest is {self.longest} and static_masks {self.static_masks}; at least 1 and 0 are needed"
            )

    def rate_at(self, progress: float) -> float:
        """The share that is selected at ``progress`` (0 to 1) of the run."""
        last = self.rate if self.final_rate is None else self.final_rate
        return self.rate + (last - self.rate) * progress


def mask_tokens(
    ids_T: NDArray[np.int64],
    layout: SequenceLayout,
    spec: MaskingSpec,
    vocabulary: Vocabulary,
    *,
    draw: np.random.Generator,
    progress: float = 0.0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Select tokens and mask them.

    Of n candidate tokens in a text, ``rate * n`` are selected, rounded up or down at random so that the rate
    is correct on average even for short texts; at least one token of the batch is selected. Special tokens
    are never selected.

    Args:
        ids_T: token ids of all sequences, special tokens included.
        layout: where each sequence begins.
        spec: the masking settings.
        vocabulary: which ids are special, and which continue a word.
        draw: determines all random choices; with ``spec.static_masks`` only which mask is used.
        progress: completed share of the run.

    Returns:
        The encoder's input, shape (T,), and the selected indices in ascending order, shape (M,).
    """
    rate = spec.rate_at(progress)
    if not spec.static_masks:
        chosen_M = choose(ids_T, layout, spec, rate=rate, vocabulary=vocabulary, draw=draw)
        return _put(ids_T, chosen_M, spec, vocabulary, draw), chosen_M
    hidden_T, chosen = ids_T.copy(), []
    for sequence in range(layout.sequence_count):
        rows = layout.rows(sequence)
        own_N = ids_T[rows]
        copy = int(draw.integers(spec.static_masks))
        fixed = np.random.default_rng([copy, *own_N.tolist()])
        alone = SequenceLayout.of_lengths([len(own_N)])
        own_M = choose(own_N, alone, spec, rate=rate, vocabulary=vocabulary, draw=fixed)
        hidden_T[rows] = _put(own_N, own_M, spec, vocabulary, fixed)
        chosen.append(own_M + rows.start)
    return hidden_T, np.concatenate(chosen)


def choose(
    ids_T: NDArray[np.int64],
    layout: SequenceLayout,
    spec: MaskingSpec,
    *,
    rate: float,
    vocabulary: Vocabulary,
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    """The indices to mask, in ascending order; see `mask_tokens`."""
    free_T = ~vocabulary.special_V[ids_T]
    if not free_T.any():
        raise InvalidRequest("a batch holds only special tokens, and none of them can be masked")
    places_N = np.flatnonzero(free_T)
    sequence_N = layout.sequence_of_T[places_N]
    unit_N = _units(ids_T, layout, spec, vocabulary, draw)[places_N]
    wanted_S = np.floor(
        rate * np.bincount(sequence_N, minlength=layout.sequence_count) + draw.random(layout.sequence_count)
    )
    # Units are in random order within their sequence; one is taken if at least half of it is still needed.
    unit_U, first_U, size_U = np.unique(unit_N, return_index=True, return_counts=True)
    sequence_U = sequence_N[first_U]
    order_U = np.lexsort((draw.random(len(unit_U)), sequence_U))
    size, sequence = size_U[order_U], sequence_U[order_U]
    before = np.cumsum(size) - size
    starts = np.flatnonzero(np.concatenate(([True], sequence[1:] != sequence[:-1])))
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(size))))
    taken_U = np.zeros(len(unit_U), dtype=np.bool_)
    taken_U[order_U] = before + size / 2 <= wanted_S[sequence]
    if not taken_U.any():
        taken_U[order_U[0]] = True
    return places_N[taken_U[np.searchsorted(unit_U, unit_N)]]


def _units(
    ids_T: NDArray[np.int64],
    layout: SequenceLayout,
    spec: MaskingSpec,
    vocabulary: Vocabulary,
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    """A number for each token, equal for tokens that are masked together."""
    if spec.mask_unit == "token":
        return np.arange(len(ids_T))
    begins_T = ~vocabulary.continues_V[ids_T] | vocabulary.special_V[ids_T]
    begins_T[layout.offsets[:-1]] = True
    after_special = np.concatenate(([False], vocabulary.special_V[ids_T][:-1]))
    begins_T |= after_special
    word_T = np.cumsum(begins_T) - 1
    match spec.mask_unit:
        case "word":
            return word_T
        case "ngram":
            pass
        case _:
            assert_never(spec.mask_unit)
    # Words are grouped into runs of random lengths; a run ends early at the end of its text.
    words = int(word_T[-1]) + 1
    weights = 1 / np.arange(1, spec.longest + 1)
    lengths = draw.choice(np.arange(1, spec.longest + 1), size=words, p=weights / weights.sum())
    run_of_word = np.repeat(np.arange(words), lengths)[:words]
    fixed_W = (vocabulary.special_V[ids_T] | after_special)[np.flatnonzero(begins_T)]
    changes = np.concatenate(([True], run_of_word[1:] != run_of_word[:-1]))
    run_W = np.cumsum(changes | fixed_W) - 1
    run_T: NDArray[np.int64] = run_W[word_T]
    return run_T


def _put(
    ids_T: NDArray[np.int64],
    chosen_M: NDArray[np.int64],
    spec: MaskingSpec,
    vocabulary: Vocabulary,
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    masked, random = INSTEAD[spec.replacement]
    hidden_T, uniform_M = ids_T.copy(), draw.random(len(chosen_M))
    hidden_T[chosen_M[uniform_M < masked]] = vocabulary.mask_id
    replaced = chosen_M[(uniform_M >= masked) & (uniform_M < masked + random)]
    words = np.flatnonzero(~vocabulary.special_V)
    hidden_T[replaced] = words[draw.integers(len(words), size=len(replaced))]
    return hidden_T
