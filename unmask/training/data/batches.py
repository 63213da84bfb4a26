"""What the training loop reads: an interface to sources of micro-batches, and the chunk of running text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of running text, as ids without special tokens."""

    ids: NDArray[np.int64]
    document: int
    """Chunks of one document share this number."""


Item_co = TypeVar("Item_co", covariant=True)


class Batches(Protocol[Item_co]):
    """An endless sequence of micro-batches of items, whose position can be stored and restored.

    An item is what the objective prepares: a `Chunk` of running text, a text with its label, a pair.
    """

    def next(self, count: int, *, rank: int = 0, world: int = 1) -> Sequence[Sequence[Item_co]]:
        """The next ``count`` micro-batches, of which those numbered rank, rank + world, ... are returned."""

    def state(self) -> dict[str, Any]:
        """The position, as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that `state` returned.

        Raises:
            InvalidRequest: the position belongs to other data.
        """

    @property
    def fill_ratio(self) -> float:
        """Tokens divided by the capacity of the micro-batches so far; 1 if there is no capacity limit."""

    @property
    def tokens(self) -> int:
        """Tokens in the micro-batches so far."""

    @property
    def epochs(self) -> Mapping[str, float]:
        """How often each source has been read so far, by its name."""
