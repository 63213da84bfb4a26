"""Tagging schemes: labels of words such as B-PER and I-PER, and the entities that they write."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.values import SchemeName

PREFIXES = ("B", "I", "L", "E", "U", "S")
ENTITY = "entity"
"""The type of entities whose labels name none."""

Span = tuple[str, int, int]
"""Type, first word, and the word after the last of an entity."""


@dataclass(frozen=True)
class Scheme:
    """A head's labels as a tagging scheme: BIO (IOB2), IOB1, or BILOU (also called BIOES).

    A label is a prefix, a hyphen and a type; ``O`` is outside. ``B`` begins an entity, ``I`` continues it,
    ``L`` or ``E`` ends it, and ``U`` or ``S`` is an entity of one word. Without any ``B``, an entity begins
    where its type does (IOB1). Prefixes alone, such as ``B`` and ``I`` beside ``O``, have the type `ENTITY`.
    """

    labels: tuple[str, ...]

    @property
    def has_entities(self) -> bool:
        """Whether the labels follow a scheme."""
        parts = [split_label(label) for label in self.labels]
        if "O" not in self.labels and any(label in PREFIXES for label in self.labels):
            return False  # single letters that are names of classes
        return any(prefix for prefix, _ in parts) and all(
            prefix or label == "O" for (prefix, _), label in zip(parts, self.labels, strict=True)
        )

    @property
    def name(self) -> SchemeName:
        """The scheme by its prefixes."""
        prefixes = {prefix for prefix, _ in map(split_label, self.labels)}
        if prefixes & set("ES"):
            return "BIOES"
        if prefixes & set("LU"):
            return "BILOU"
        return "IOB2" if "B" in prefixes else "IOB1"

    def allowed(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which labels may begin a text, (C,), follow each other, (C, C), and end a text, (C,)."""
        parts = [split_label(label) for label in self.labels]
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


def entities_of(labels: Sequence[str]) -> list[Span]:
    """The entities of labeled words, as type, first word, and the word after the last.

    A word that continues no entity of its type begins one, as in the evaluation of CoNLL-2003.
    """
    spans: list[Span] = []
    before = ("", "")
    for place, label in enumerate(labels):
        prefix, kind = split_label(label)
        if prefix:
            if prefix in "ILE" and before[0] in ("B", "I") and before[1] == kind:
                spans[-1] = (kind, spans[-1][1], place + 1)
            else:
                spans.append((kind, place, place + 1))
        before = (prefix, kind)
    return spans


def written_in(scheme: SchemeName, entities: Sequence[Span], words: int) -> list[str]:
    """The label of each word in a scheme, for entities that do not overlap; the inverse of `entities_of`."""
    last, single = {"BILOU": ("L", "U"), "BIOES": ("E", "S")}.get(scheme, ("I", "B"))
    labels = ["O"] * words
    before = ("", -1)
    for kind, first, end in entities:
        opening = "B"
        if scheme == "IOB1" and before != (kind, first):
            opening = "I"
        elif end == first + 1:
            opening = single
        labels[first:end] = [f"{opening}-{kind}", *([f"I-{kind}"] * (end - first - 1))]
        if end > first + 1:
            labels[end - 1] = f"{last}-{kind}"
        before = (kind, end)
    return labels


def split_label(label: str) -> tuple[str, str]:
    """Prefix and type of a label; no prefix for O and for a label of no scheme."""
    prefix, hyphen, kind = label.partition("-")
    if prefix not in PREFIXES or (hyphen and not kind):
        return "", label
    return prefix, kind or ENTITY
