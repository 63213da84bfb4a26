"""Labels of words, and the entities that they form, with offsets into the caller's string.

Axes: W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.model.engine import Floats
from unmask.model.spec import Classifier
from unmask.tasks.classify import label_names, probabilities
from unmask.tasks.long_texts import Coverage, WindowedLogits
from unmask.tasks.values import Aggregation
from unmask.text import Encoding
from unmask.text.borders import word_borders


@dataclass(frozen=True)
class TaggedWord:
    """A word and its label."""

    label: str
    start: int
    """The offset of its first character in the caller's string."""
    end: int
    """The offset after its last character."""
    text: str
    score: float
    """The probability of the label."""


@dataclass(frozen=True)
class Entity:
    """Consecutive words that form one entity."""

    label: str
    """Its type, without the prefix of a tagging scheme: PER for B-PER and I-PER."""
    start: int
    """The offset of its first character in the caller's string."""
    end: int
    """The offset after its last character."""
    text: str
    score: float
    """The mean probability of its words' labels."""


@dataclass(frozen=True)
class Tagging(Coverage):
    """The prediction for one text."""

    words: tuple[TaggedWord, ...]
    entities: tuple[Entity, ...]
    """For labels of a tagging scheme (B-, I-, ...); empty for others, such as parts of speech."""
    has_entities: bool
    """Whether the labels are of a tagging scheme."""


@dataclass(frozen=True)
class Scheme:
    """A head's labels as a tagging scheme: BIO (IOB2), IOB1, or BILOU (also called BIOES).

    A label is a prefix, a hyphen and a type; ``O`` is outside. ``B`` begins an entity, ``I`` continues it,
    ``L`` or ``E`` ends it, and ``U`` or ``S`` is an entity of one word. Without any ``B``, an entity begins
    where its type does (IOB1).
    """

    labels: tuple[str, ...]

    @property
    def has_entities(self) -> bool:
        """Whether the labels follow a scheme."""
        parts = [_split(label) for label in self.labels]
        return any(prefix for prefix, _ in parts) and all(
            prefix or label == "O" for (prefix, _), label in zip(parts, self.labels, strict=True)
        )

    def allowed(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which labels may begin a text, (C,), follow each other, (C, C), and end a text, (C,)."""
        parts = [_split(label) for label in self.labels]
        prefixes = {prefix for prefix, _ in parts}
        begins = "BUS" if prefixes & set("BUS") else "BUSI"
        closes = bool(prefixes & set("LE"))  # BILOU: an entity of several words must be closed
        first = np.array([not prefix or prefix in begins for prefix, _ in parts])
        follows = np.empty((len(parts), len(parts)), dtype=np.bool_)
        for row, (before, kind) in enumerate(parts):
            is_open = before in ("B", "I")
            for column, (prefix, other) in enumerate(parts):
                inside = bool(prefix) and prefix in "ILE"
                if inside and not (prefix == "I" and "I" in begins):
                    follows[row, column] = is_open and kind == other
                else:
                    follows[row, column] = not (closes and is_open)
        last = np.array([not (closes and prefix and prefix in "BI") for prefix, _ in parts])
        return first, follows, last


def tag(
    head: Classifier,
    texts: Sequence[WindowedLogits],
    *,
    aggregation: Aggregation = "first",
) -> list[Tagging]:
    """The words of each text with their labels, and its entities.

    The words are those that the caller gave, or those of `unmask.text.borders.word_borders`. In a tagging
    scheme the labels are the most probable sequence without an illegal transition (Viterbi), so no I-PER
    follows O in IOB2.
    """
    scheme = Scheme(label_names(head))
    return [_tagged(text, scheme, aggregation) for text in texts]


def _tagged(text: WindowedLogits, scheme: Scheme, aggregation: Aggregation) -> Tagging:
    encoding = text.encoding
    bounds_W2, words_N = words_of(encoding)
    p_NC = probabilities(text.per_token(), "single_label_classification")
    p_WC = _by_word(p_NC, words_N, len(bounds_W2), aggregation)
    chosen = best_sequence(p_WC, scheme) if scheme.has_entities else p_WC.argmax(-1)
    words = tuple(
        TaggedWord(scheme.labels[label], int(start), int(end), encoding.text[start:end], float(p_C[label]))
        for (start, end), label, p_C in zip(bounds_W2.tolist(), chosen.tolist(), p_WC, strict=True)
    )
    entities = _entities(words, encoding.text) if scheme.has_entities else ()
    return Tagging(words, entities, scheme.has_entities, **vars(text.coverage))


def words_of(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The words of a text that have at least one token, and the word of each token.

    Returns:
        Bounds in the caller's string, (W, 2), and for each token its word, (N,); -1 for special tokens and
        for tokens that stand for no character.
    """
    offsets = encoding.offsets
    covers = (offsets[:, 0] < offsets[:, 1]) & (encoding.sequence_ids == 0)
    if encoding.words is not None:
        of_N = np.where(covers, encoding.words, -1)
    else:
        borders = np.flatnonzero(word_borders(encoding.text))
        of_N = np.where(covers, np.searchsorted(borders, offsets[:, 0], side="right") - 1, -1)
    kept, dense_N = np.unique(of_N[covers], return_inverse=True)
    words_N = np.full(len(of_N), -1, dtype=np.int64)
    words_N[covers] = dense_N
    if encoding.words is not None:
        starts = np.full(len(kept), len(encoding.text))
        ends = np.zeros(len(kept), dtype=np.int64)
        np.minimum.at(starts, dense_N, offsets[covers, 0])
        np.maximum.at(ends, dense_N, offsets[covers, 1])
    else:
        starts, ends = borders[kept], borders[kept + 1]
    return np.stack((starts, ends), axis=1), words_N


def _by_word(
    p_NC: Floats, words_N: NDArray[np.int64], count: int, aggregation: Aggregation
) -> NDArray[np.float64]:
    tokens = np.flatnonzero(words_N >= 0)
    if aggregation == "first":
        _, first = np.unique(words_N[tokens], return_index=True)
        return np.asarray(p_NC[tokens[first]], dtype=np.float64)
    sums = np.zeros((count, p_NC.shape[1]))
    np.add.at(sums, words_N[tokens], p_NC[tokens])
    return sums / np.bincount(words_N[tokens], minlength=count)[:, None]


def best_sequence(p_WC: NDArray[np.float64], scheme: Scheme) -> NDArray[np.int64]:
    """The labels of the most probable legal sequence (Viterbi 1967)."""
    first, follows, last = scheme.allowed()
    with np.errstate(divide="ignore"):
        logs_WC = np.log(p_WC)
    logs_WC = np.maximum(logs_WC, -1e4)  # a probability of 0 is still better than an illegal sequence
    if not len(p_WC):
        return np.empty(0, dtype=np.int64)
    best_C = np.where(first, logs_WC[0], -np.inf)
    came = np.zeros(p_WC.shape, dtype=np.int64)
    for word in range(1, len(p_WC)):
        paths_CC = np.where(follows, best_C[:, None], -np.inf)
        came[word] = paths_CC.argmax(0)
        best_C = paths_CC.max(0) + logs_WC[word]
    chosen = np.empty(len(p_WC), dtype=np.int64)
    chosen[-1] = np.where(last, best_C, -np.inf).argmax()
    for word in range(len(p_WC) - 1, 0, -1):
        chosen[word - 1] = came[word, chosen[word]]
    return chosen


def entities_of(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities of labeled words, as type, first word, and the word after the last.

    A word that continues no entity of its type begins one, as in the evaluation of CoNLL-2003.
    """
    found: list[tuple[str, int, int]] = []
    before = ("", "")
    for place, label in enumerate(labels):
        prefix, kind = _split(label)
        if prefix:
            if prefix in "ILE" and before[0] in ("B", "I") and before[1] == kind:
                found[-1] = (kind, found[-1][1], place + 1)
            else:
                found.append((kind, place, place + 1))
        before = (prefix, kind)
    return found


def _entities(words: Sequence[TaggedWord], text: str) -> tuple[Entity, ...]:
    """The entities that words form, each from the first character of its words to the last."""
    found = []
    for kind, first, end in entities_of([word.label for word in words]):
        some = words[first:end]
        start, stop = some[0].start, some[-1].end
        found.append(
            Entity(kind, start, stop, text[start:stop], float(np.mean([word.score for word in some])))
        )
    return tuple(found)


def _split(label: str) -> tuple[str, str]:
    """Prefix and type of a label; no prefix for O and for a label of no scheme."""
    prefix, hyphen, kind = label.partition("-")
    return (prefix, kind) if hyphen and kind and prefix in ("B", "I", "L", "E", "U", "S") else ("", label)
