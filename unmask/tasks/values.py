"""The values of options of several tasks, labels that are named with texts, and logits as a checked value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import listed
from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest, quoted

LongTexts = Literal["window", "error", "end"]
"""What to do with a text longer than the model reads: read it in windows, refuse it, or drop its end."""


Aggregation = Literal["first", "mean"]
"""How the tokens of a word give its label: the first token alone, as most taggers are trained, or the mean of
the probabilities of all of them."""


PromptLanguage = Literal["en", "de", "fr", "es", "it", "pl", "cn", "hu"]
"""The language of the sentences around contexts and question, by the codes of LettuceDetect."""

SchemeName = Literal["IOB2", "BIO", "IOB1", "BILOU", "BIOES"]
"""How labels of words write entities. IOB2, also called BIO: ``B`` begins each entity and ``I`` continues it.
IOB1: ``B`` begins an entity only directly after another of its type. BILOU: ``L`` ends an entity and ``U`` is
one of a single word; BIOES calls these ``E`` and ``S``."""


@dataclass(frozen=True, eq=False)
class Logits:
    """The logits of a head for several texts."""

    head: str
    """Its role."""
    values: Floats
    """One row per text, (S, C), for a sequence head; one per token, (T, C), for a token head."""
    offsets: NDArray[np.int64] | None
    """The start of each text, (S + 1,), for a token head; None for a sequence head."""

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise InvalidRequest(f"logits have shape {self.values.shape}; they must have two axes")
        if self.offsets is not None:
            _check_offsets(self.offsets, len(self.values))

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, text: int) -> Floats:
        """The logits of one text, (C,), or of its tokens, (N, C)."""
        if self.offsets is None:
            row: Floats = self.values[text]
            return row
        start, end = _bounds(self.offsets, text)
        return self.values[start:end]


def _check_offsets(offsets: NDArray[np.int64], rows: int) -> None:
    fits = offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == rows
    if not fits or (np.diff(offsets) < 0).any():
        raise InvalidRequest(
            f"offsets must rise from 0 to {rows}, the number of rows, not {offsets.tolist()[:8]}"
        )


def _bounds(offsets: NDArray[np.int64], text: int) -> tuple[int, int]:
    """The bounds of a text; raises IndexError past the end, like a list, so that iteration works."""
    place = range(len(offsets) - 1)[text]
    return int(offsets[place]), int(offsets[place + 1])


def distinct_labels(what: str, labels: Sequence[str]) -> list[str]:
    """Labels that are named with a text, checked; ``what`` is the argument's name.

    Raises:
        InvalidRequest: there is no label, a label is no text or comes twice.
    """
    names: list[str] = listed(what, labels)
    seen = set[str]()
    if not names:
        raise InvalidRequest(f"{what} is empty; give at least one label, such as 'person'")
    for label in names:
        if not isinstance(label, str) or not label.strip():
            raise InvalidRequest(f"{what} has {quoted(label)}; give each label as a text")
        if label in seen:
            raise InvalidRequest(f"{what} has {quoted(label)} twice; give each label once")
        seen.add(label)
    return names
