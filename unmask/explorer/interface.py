"""What the explorer asks of a model: a name, sizes, and the attention of one text."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from unmask.text.encoding import Encoding, TooLong


class ExplorableView(Protocol):
    """The attention of one text, computed tile by tile."""

    @property
    def encoding(self) -> Encoding:
        """The tokens that were read."""

    @property
    def layer_count(self) -> int:
        """L."""

    @property
    def head_count(self) -> int:
        """H."""

    @property
    def entropy(self) -> npt.NDArray[np.float32]:
        """``(L, H, N)`` nats, by query."""

    @property
    def distance(self) -> npt.NDArray[np.float32]:
        """``(L, H, N)`` mean distance in tokens, by query."""

    @property
    def received(self) -> npt.NDArray[np.float32]:
        """``(L, H, N)`` mean mass received from all queries, by key."""

    def __len__(self) -> int:
        """N."""

    def probabilities(self, layer: int, head: int, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        """``(R, C)`` attention probabilities of a range of queries to a range of keys."""


class ExplorableModel(Protocol):
    """A model whose attention can be looked at."""

    @property
    def name(self) -> str:
        """What it was loaded as."""

    @property
    def revision(self) -> str | None:
        """The exact revision of the checkpoint, where it has one."""

    @property
    def parameter_count(self) -> int:
        """Number of weights."""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of one text, special ones included; None: no limit."""

    @property
    def layer_count(self) -> int:
        """L."""

    @property
    def head_count(self) -> int:
        """H."""

    @property
    def width(self) -> int:
        """D."""

    def attention(self, text: str, *, too_long: TooLong) -> ExplorableView:
        """Read one text; bad input raises an `unmask.errors.UnmaskError`."""
