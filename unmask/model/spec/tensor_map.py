"""How a family's checkpoints name tensors: rows of one table that is read in both directions.

A row names a module (the part before ``.weight`` or ``.bias``) or a whole tensor; ``{l}`` stands for
the number of a layer's set of weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.model.spec.encoder import EncoderSpec


@dataclass(frozen=True)
class Rename:
    """One of theirs is one of ours."""

    theirs: str
    ours: str


@dataclass(frozen=True)
class Concat:
    """Several of theirs, of equal shape, stacked along their first axis, are one of ours."""

    theirs: tuple[str, ...]
    ours: str


@dataclass(frozen=True)
class Reorder:
    """One of theirs is one of ours with equal pieces of its first axis in another order."""

    theirs: str
    ours: str
    order: Callable[[EncoderSpec], tuple[int, ...]]
    """For each piece of ours, which piece of theirs it is."""


@dataclass(frozen=True)
class Ignore:
    """Theirs that have no place here (``*`` matches anything), and why."""

    theirs: str
    reason: str


@dataclass(frozen=True)
class Copy:
    """A second name of theirs for one tensor of ours, checked to be equal to it and stored once.

    A file that has the tensor under this name alone is read too.
    """

    theirs: str
    ours: str


@dataclass(frozen=True)
class Same:
    """Every tensor of ours under its own name, where no other row names it."""


TensorRule = Rename | Concat | Reorder | Copy | Ignore | Same
