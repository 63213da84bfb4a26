"""What the training loop asks of an objective: prepare on the host, then a loss with its terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor, nn

from unmask.model.encoder import Encoder
from unmask.text.batch import PackedBatch


@dataclass(frozen=True, eq=False)
class Example:
    """A micro-batch ready for the device; each objective adds what it needs."""

    counts: Mapping[str, int]
    """For each term of the loss, how many things it is a mean over, such as masked tokens."""
    tokens: int
    """Tokens in the packed batch, special ones included."""
    sequences: int
    """Sequences in it."""
    batch: PackedBatch
    """What the encoder reads."""
    predicted: int = field(default=0, kw_only=True)
    """Tokens whose word is predicted from the whole vocabulary, which is most of a head's arithmetic."""


Item = TypeVar("Item")
"""What a micro-batch is made of, such as a `Chunk` of text, or a text with its label."""

Prepared = TypeVar("Prepared", bound=Example)


@dataclass(frozen=True, eq=False)
class LossOutput:
    """What an objective says of one micro-batch."""

    loss: Tensor
    """Its share of the global batch's loss, to be added up over micro-batches and ranks; a scalar."""
    sums: Mapping[str, Tensor]
    """Sums to report, by ``term/figure`` such as ``masked/loss`` or ``masked/accuracy``: added up over
    micro-batches and ranks and divided by the total count of ``term``. Detached scalars."""


class Objective(nn.Module, ABC, Generic[Item, Prepared]):
    """One way of learning from items of any type. Its parameters are those that are trained.

    Masks and other draws depend on the generator that `prepare` is given alone, so a micro-batch is the same
    whichever process prepares it.
    """

    extra_tokens: int = 2
    """Special tokens that `prepare` adds to an item; packing reserves room for them."""

    @abstractmethod
    def prepare(self, items: Sequence[Item], draw: np.random.Generator, progress: float, /) -> Prepared:
        """Turn the items of a micro-batch into an example, on the host.

        Args:
            items: at least one.
            draw: decides everything that is random here.
            progress: share of the run that is done, 0 to 1, for rates that change.
        """

    @abstractmethod
    def forward(self, example: Prepared, totals: Mapping[str, int]) -> LossOutput:
        """The loss of an example, where ``totals`` are the counts of the whole global batch."""

    @abstractmethod
    def encoders(self) -> Mapping[str, Encoder]:
        """The encoders worth keeping, plain and ready to be saved; the one that is shipped under ``""``."""
