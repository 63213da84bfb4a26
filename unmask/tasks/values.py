"""Ragged and sparse results, as values validated on construction."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest

LongTexts = Literal["window", "error", "end"]
"""What to do with a text longer than the model reads: read it in windows, refuse it, or drop its end."""


Aggregation = Literal["first", "mean"]
"""How the tokens of a word give its label: the first token alone, as most taggers are trained, or the mean of
the probabilities of all of them."""


SchemeName = Literal["IOB2", "BIO", "IOB1", "BILOU", "BIOES"]
"""How labels of words write entities. IOB2, also called BIO: ``B`` begins each entity and ``I`` continues it.
IOB1: ``B`` begins an entity only directly after another of its type. BILOU: ``L`` ends an entity and ``U`` is
one of a single word; BIOES calls these ``E`` and ``S``."""


@dataclass(frozen=True, eq=False)
class RaggedVectors:
    """Token vectors of several texts, end to end: ``values[offsets[s]:offsets[s + 1]]``."""

    values_TE: Floats
    """One row per token."""
    offsets: NDArray[np.int64]
    """Shape (S + 1,): the start of each text, from 0, and the end of the last one."""

    def __post_init__(self) -> None:
        if self.values_TE.ndim != 2:
            raise InvalidRequest(f"values_TE has shape {self.values_TE.shape}; it must have two axes")
        _check_offsets(self.offsets, len(self.values_TE))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> Floats:
        """The vectors of one text, (N, E)."""
        start, end = _bounds(self.offsets, text)
        return self.values_TE[start:end]


@dataclass(frozen=True, eq=False)
class SparseVectors:
    """One sparse vector per text: compressed sparse rows (CSR), as in scipy."""

    values: NDArray[np.float32]
    """The nonzero values, row by row."""
    columns: NDArray[np.int64]
    """The column of each value, increasing within a row."""
    offsets: NDArray[np.int64]
    """Shape (S + 1,): the start of each row, from 0, and the end of the last one."""
    width: int
    """The number of columns."""

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.shape != self.columns.shape:
            raise InvalidRequest(
                f"values have shape {self.values.shape} and columns {self.columns.shape}; "
                "they must be two lists of equal length"
            )
        _check_offsets(self.offsets, len(self.values))
        if len(self.columns) and not 0 <= self.columns.min() <= self.columns.max() < self.width:
            raise InvalidRequest(f"a column is outside 0 to {self.width - 1}; check the columns or the width")
        rising = np.diff(self.columns) > 0
        starts = self.offsets[(self.offsets > 0) & (self.offsets < len(self.columns))]
        rising[starts - 1] = True  # between two rows
        if not rising.all():
            raise InvalidRequest("the columns of a row do not increase; sort them and sum duplicates")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def dense(self) -> NDArray[np.float32]:
        """All rows with their zeros, (S, width)."""
        found = np.zeros((len(self), self.width), dtype=np.float32)
        found[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.columns] = self.values
        return found


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
            one: Floats = self.values[text]
            return one
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
