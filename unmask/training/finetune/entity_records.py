"""Records of texts with their entities, as words and spans of words.

Axes: W words of a text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import counted
from unmask.errors import InvalidText, quoted
from unmask.tasks.label_spans import words_of
from unmask.tasks.schemes import entities_of
from unmask.training.finetune.records import Labeled


@dataclass
class EntityCounts:
    """What a set of records has."""

    texts: int = 0
    entities: int = 0
    long: int = 0
    """Entities with more words than spans can have."""
    late: int = 0
    """Entities beyond the last word that is read."""
    labels: set[str] = field(default_factory=set)

    def add(self, others: "EntityCounts") -> None:
        """Count also what other records have."""
        self.texts += others.texts
        self.entities += others.entities
        self.long += others.long
        self.late += others.late
        self.labels |= others.labels

    def described(self, name: str, max_width: int) -> list[str]:
        """Sentences about them."""
        first = f"{name}: {counted(self.texts, 'text')}, {self.entities:,} entities of "
        sentences = [first + counted(len(self.labels), "label")]
        if self.long:
            sentences.append(
                f"{name}: {self.long:,} of the entities have more than {max_width} words, and "
                "no span finds them; raise entities.max_width to learn them"
            )
        if self.late:
            sentences.append(f"{name}: {self.late:,} entities are beyond the last word that is read")
        return sentences


def word_spans(record: Labeled, names: Mapping[str, str]) -> tuple[list[str], list[tuple[int, int, str]]]:
    """The words of a record, and its entities as the first word, the last word and the label.

    A record has words with a label of a tagging scheme each; or words with ``[first word, last word, label]``
    of each entity, as gliner's data; or a text with ``[start, end, label]`` in characters, of which the end
    is not a part, or objects with these keys. The words of a text are those that the head reads.

    Args:
        record: the record.
        names: other names of labels.

    Raises:
        InvalidText: its label is none of these, or an entity is not at the borders of words.
    """
    words, _, bounds_W2 = words_of(
        record.text if isinstance(record.text, str) else list(record.text), record.where
    )
    label = record.label
    if not isinstance(label, list | tuple):
        raise InvalidText(
            f"{record.where} has {quoted(label)} where its entities should be; give a list, or a label for "
            "each word"
        )
    if not isinstance(record.text, str) and label and all(isinstance(part, str) for part in label):
        if len(label) != len(words):
            raise InvalidText(
                f"{record.where} has {len(words)} words and {len(label)} labels; give one for each"
            )
        return words, [
            (first, end - 1, names.get(kind, kind)) for kind, first, end in entities_of(list(label))
        ]
    spans = []
    for part in label:
        first, last, name = _span_of(part, record.where)
        if isinstance(record.text, str):
            first, last = _words_at(first, last, bounds_W2, record)
        if not 0 <= first <= last < len(words):
            raise InvalidText(
                f"{record.where} has an entity from word {first} to word {last}, and {len(words)} words, "
                "counted from 0; mend it"
            )
        spans.append((first, last, names.get(name, name)))
    return words, spans


def _span_of(part: Any, where: str) -> tuple[int, int, str]:
    values = [part.get(key) for key in ("start", "end", "label")] if isinstance(part, Mapping) else part
    if (
        not isinstance(values, list | tuple)
        or [type(value) for value in values] != [int, int, str]
        or not values[2].strip()
    ):
        raise InvalidText(
            f"{where} has the entity {quoted(part)}; give [start, end, label], or an object with these keys"
        )
    return values[0], values[1], values[2]


def _words_at(start: int, end: int, bounds_W2: NDArray[np.int64], record: Labeled) -> tuple[int, int]:
    first, last = (np.flatnonzero(bounds_W2[:, side] == at) for side, at in ((0, start), (1, end)))
    if not (len(first) and len(last)):
        raise InvalidText(
            f"{record.where} has an entity from character {start} to {end}, "
            f"{quoted(record.text[start:end])}, which does not begin and end with words; mend it"
        )
    return int(first[0]), int(last[0])
