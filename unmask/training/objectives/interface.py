"""The interface of training objectives: prepare examples on the host, then compute a loss with its terms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.text.batch import PackedBatch


@dataclass(frozen=True, eq=False)
class Example:
    """A prepared micro-batch; each objective adds its own fields."""

    counts: Mapping[str, int]
    """For each term of the loss, the number of items that it is a mean over, such as masked tokens."""
    tokens: int
    """Tokens in the packed batch, special tokens included."""
    sequences: int
    """Sequences in the packed batch."""
    batch: PackedBatch
    """The encoder's input."""
    predicted: int = field(default=0, kw_only=True)
    """Tokens predicted over the whole vocabulary, which is most of a head's arithmetic."""

    def extended(self, kind: "type[Extended]", **more: Any) -> "Extended":
        """An example of a subclass, with the fields of this one and more."""
        return kind(**{**vars(self), **more})


Extended = TypeVar("Extended", bound=Example)

Item = TypeVar("Item")
"""An item of a micro-batch, such as a `Chunk` of text, or a text with its label."""

Prepared = TypeVar("Prepared", bound=Example)


@dataclass(frozen=True, eq=False)
class LossOutput:
    """An objective's result for one micro-batch."""

    loss: Tensor
    """Its share of the global batch's loss, to be summed over micro-batches and ranks; a scalar."""
    sums: Mapping[str, Tensor]
    """Sums to report, by ``term/figure`` such as ``masked/loss`` or ``masked/accuracy``: summed over
    micro-batches and ranks and divided by the total count of ``term``. Detached scalars."""


class Objective(nn.Module, ABC, Generic[Item, Prepared]):
    """A training objective for items of some type. Its parameters are those that are trained.

    Masks and other random choices depend only on the generator passed to `prepare`, so a micro-batch is the
    same in every process.
    """

    extra_tokens: int = 2
    """Special tokens that `prepare` adds to an item; packing reserves room for them."""

    encoder: Encoder
    """The encoder that is trained; an objective with others says in `encoders` which are saved."""

    passes: float = 1.0
    """Passes through the encoders for each micro-batch, in units of a pass forward and back; counted as
    arithmetic."""

    @abstractmethod
    def prepare(self, items: Sequence[Item], draw: np.random.Generator, progress: float, /) -> Prepared:
        """Turn the items of a micro-batch into an example, on the host.

        Args:
            items: at least one.
            draw: determines all random choices.
            progress: completed share of the run, 0 to 1, for rates that change.
        """

    @abstractmethod
    def forward(self, example: Prepared, totals: Mapping[str, int]) -> LossOutput:
        """The loss of an example; ``totals`` are the counts of the whole global batch."""

    def beside(self) -> Mapping[str, Tensor]:
        """Tensors of a head beside the encoder that is saved with it, by their names in files."""
        return {}

    def encoders(self) -> Mapping[str, Encoder]:
        """The encoders to save, in their exported form; the main one has the key ``""``."""
        return {"": self.encoder}
