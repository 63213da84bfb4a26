"""Findings: what an overview consists of, as numbers with one sentence, and the names that sentences use.

Axes: W words.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.attention.layer_statistics import column_classes
from unmask.interpret.words.words import Words, words
from unmask.text import Encoding
from unmask.text.borders import is_word

Kind = Literal[
    "previous",
    "next",
    "same",
    "edge",
    "punctuation",
    "sink",
    "labels",
    "layers",
    "focused",
    "states",
    "sense",
    "cka",
    "split",
    "effect",
    "prediction",
]
"""What a finding is about: a previous-token or next-token head; a head that attends to other occurrences of
the same word; the strongest edge between words; a head that attends to punctuation; the attention sink; how
many heads have each label; the entropy of each layer's heads; the head with the lowest entropy; the layer
that changes the hidden states most; two occurrences of a word that drift apart; similarity of layers; words
split into several tokens; the head whose ablation has the largest effect; the layer after which a masked word
is predicted."""


@dataclass(frozen=True)
class Edge:
    """Attention from one token to another."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Bar:
    """One value of a finding's picture, with its name."""

    label: str
    value: float


@dataclass(frozen=True)
class Finding:
    """One thing that a model did with a text, and the numbers that its sentence states."""

    kind: Kind
    sentence: str
    value: float
    """The deciding number, as in the sentence: a share, an entropy share, a distance in tokens, a cosine or
    1 minus it, a probability, an effect in the unit of its target."""
    baseline: float | None = None
    """What to compare ``value`` with: the same number under uniform attention, or before an ablation."""
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    tokens: tuple[int, ...] = ()
    """The tokens that it is about."""
    bars: tuple[Bar, ...] = ()
    """Values of tokens, heads, layers or levels; those of levels begin with the embeddings."""
    matrix: tuple[tuple[float, ...], ...] = ()
    """CKA between levels, named by ``bars``."""
    edges: tuple[Edge, ...] = ()
    """The strongest edges of the head between `window` tokens."""
    window: tuple[int, int] = (0, 0)
    """The tokens that ``edges`` are drawn over, the end not included."""
    surprise: float | None = None
    """Share of the texts of a corpus in which the same head shows less than this (for ``sense``: in which no
    word drifts apart as far), from 0 to 1; None where it was compared with none."""
    compared: int = 0
    """The texts that it was compared with: those that were read so far."""


@dataclass(frozen=True)
class Overview:
    """What a model did with one text. A finding that does not hold for the text is left out."""

    layers: int
    layers_measured: int
    """Findings about heads are about those of these layers."""
    findings: tuple[Finding, ...]
    """The rarest first, see `Finding.surprise`."""


LONGEST = 24
"""Characters of a word that are quoted."""


class Names:
    """Names of one text's tokens and words, as people read them."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.words: Words = words(encoding)
        self._surfaces = [self.words.surface(word) for word in range(len(self.words))]
        self._times = Counter(self._surfaces)

    def token(self, token: int) -> str:
        """A token by itself: “bank”, or [CLS]."""
        if self.encoding.special[token]:
            return self.encoding.pieces[token]
        return quoted(self.encoding.surface(token) or self.encoding.pieces[token])

    def word(self, token: int) -> str:
        """The word of a token; one that occurs more than once is named with its token."""
        word = int(self.words.of_token[token])
        if self.words.special[word]:
            return self.token(token)
        surface = self._surfaces[word]
        return quoted(surface) + (f" (token {token})" if self._times[surface] > 1 else "")

    def surface(self, token: int) -> str:
        """The word of a token, whichever of its occurrences it is."""
        return quoted(self._surfaces[int(self.words.of_token[token])])

    def part(self, token: int) -> str:
        """The characters of a token without the marks of its vocabulary, unless it has none."""
        return self.encoding.surface(token).strip() or self.encoding.pieces[token]

    def same_as(self, word: int) -> str:
        """The key of all occurrences of a word: its characters in lower case."""
        return self._surfaces[word].casefold()

    @cached_property
    def wordlike(self) -> NDArray[np.bool_]:
        """Which words have a letter or digit, (W,)."""
        wordlike_W = np.array([is_word(surface) for surface in self._surfaces], dtype=np.bool_)
        return wordlike_W & ~self.words.special

    @cached_property
    def surface_W(self) -> NDArray[np.int64]:
        """A number for each word, the same for all its occurrences, (W,)."""
        numbers: dict[str, int] = {}
        return np.array(
            [numbers.setdefault(self.same_as(word), len(numbers)) for word in range(len(self.words))],
            dtype=np.int64,
        )

    @cached_property
    def punctuation_N(self) -> NDArray[np.bool_]:
        """Which tokens are punctuation."""
        return column_classes(self.encoding)[2]

    @cached_property
    def repeated_N(self) -> NDArray[np.int64]:
        """A number for all tokens of the same word where it occurs more than once, else -1."""
        times = Counter(self.same_as(word) for word in np.flatnonzero(self.wordlike).tolist())
        numbers = {
            surface: at for at, surface in enumerate(repeated for repeated, n in times.items() if n > 1)
        }
        group_W = np.array(
            [
                numbers.get(self.same_as(word), -1) if self.wordlike[word] else -1
                for word in range(len(self.words))
            ],
            dtype=np.int64,
        )
        return group_W[self.words.of_token]


def quoted(surface: str) -> str:
    """A word in quotation marks, its beginning if it is long."""
    text = " ".join(surface.split())
    return f"“{text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}”"


def percent(share: float) -> str:
    """A share as a percentage: two digits, 0.3 % where it is small."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.5 or value == 0 else f"{value:.1f} %"


def head_name(layer: int, head: int) -> str:
    """A head as layer.head."""
    return f"{layer}.{head}"


def also(heads: Sequence[tuple[int, int]], most: int = 3) -> str:
    """A sentence that the same holds for other heads: "So do 0.2, 1.3, 2.1 and 4 more." """
    if not heads:
        return ""
    names = [head_name(*head) for head in heads[:most]]
    if len(heads) > most:
        names.append(f"{len(heads) - most} more")
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f" So {'does' if len(heads) == 1 else 'do'} {listed}."


def level_name(level: int) -> str:
    """A level of hidden states: the embeddings, or what a layer gives."""
    return "embeddings" if level == 0 else f"layer {level - 1}"
