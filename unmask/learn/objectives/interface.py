"""What the training loop asks of an objective: prepare on the host, then a loss with its terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.model.encoder import Encoder


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of running text, as ids without special tokens."""

    ids: NDArray[np.int64]
    document: int
    """Pieces of one document share this number."""


@dataclass(frozen=True, eq=False)
class Example:
    """A micro-batch ready for the device; each objective adds what it needs."""

    counts: Mapping[str, int]
    """For each term of the loss, how many things it is a mean over, such as masked tokens."""
    tokens: int
    """Tokens in the packed batch, special ones included."""
    sequences: int
    """Sequences in it."""


Prepared = TypeVar("Prepared", bound=Example)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an objective says of one micro-batch."""

    loss: Tensor
    """Its share of the global batch's loss, to be added up over micro-batches and ranks; a scalar."""
    sums: Mapping[str, Tensor]
    """Sums to report, by ``term/figure`` such as ``masked/loss`` or ``masked/accuracy``: added up over
    micro-batches and ranks and divided by the total count of ``term``. Detached scalars."""


class Objective(nn.Module, ABC, Generic[Prepared]):
    """One way of learning from text. Its parameters are those that are trained.

    Masks and other draws depend on the generator that `prepare` is given alone, so a micro-batch is the same
    whichever process prepares it.
    """

    extra_tokens: int = 2
    """Special tokens that `prepare` puts around a piece; packing reckons with them."""

    @abstractmethod
    def prepare(self, pieces: Sequence[Piece], draw: np.random.Generator, progress: float) -> Prepared:
        """Turn pieces of text into an example, on the host.

        Args:
            pieces: at least one; together with `extra_tokens` each they fill a micro-batch.
            draw: decides everything that is random here.
            progress: share of the run that is done, 0 to 1, for rates that change.
        """

    @abstractmethod
    def forward(self, example: Prepared, totals: Mapping[str, int]) -> Outcome:
        """The loss of an example, where ``totals`` are the counts of the whole global batch."""

    @abstractmethod
    def encoders(self) -> Mapping[str, Encoder]:
        """The encoders worth keeping, plain and ready to be saved; the one that is shipped under ``""``."""
