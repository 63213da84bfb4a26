"""How a family's checkpoints name tensors: a tensor map that is read in both directions.

An entry names a module (the part before ``.weight`` or ``.bias``) or a single tensor; ``{l}`` stands for
the index of a layer's set of weights. "Theirs" are the checkpoint's tensors, "ours" the encoder's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unmask.spec.encoder import EncoderSpec


@dataclass(frozen=True)
class Rename:
    """One of theirs is one of ours."""

    theirs: str
    ours: str
    where: Callable[[EncoderSpec], bool] | None = None
    """The encoders whose files have this name; None: all."""


@dataclass(frozen=True)
class Concat:
    """Several of theirs, concatenated along the first axis, are one of ours."""

    theirs: tuple[str, ...]
    ours: str
    shares: Callable[[EncoderSpec, int], tuple[int, ...]] | None = None
    """For each of theirs, its part of the rows, in the set of weights with that index; None: all have as
    many."""
    where: Callable[[EncoderSpec], bool] | None = None
    """The encoders whose files have these names; None: all."""

    def rows_of(self, whole: int, spec: EncoderSpec, weights: int) -> tuple[int, ...]:
        """For each of theirs, its number of rows, if ours has ``whole`` and is of that set of weights."""
        shares = (1,) * len(self.theirs) if self.shares is None else self.shares(spec, weights)
        return tuple(whole * share // sum(shares) for share in shares)


@dataclass(frozen=True)
class Reorder:
    """One of theirs is one of ours with equal pieces of its first axis in another order."""

    theirs: str
    ours: str
    order: Callable[[EncoderSpec], tuple[int, ...]]
    """For each piece of ours, the index of the piece of theirs."""


@dataclass(frozen=True)
class Stacked:
    """One of theirs, whose first axis counts equal parts, is one of ours, in which they follow each other.

    Theirs is (parts, rows, ...) and ours (parts * rows, ...); with ``transposed``, theirs is
    (parts, columns, rows).
    """

    theirs: str
    ours: str
    parts: Callable[[EncoderSpec], int]
    transposed: bool = False

    def their_shape(self, ours: tuple[int, ...], spec: EncoderSpec) -> tuple[int, ...]:
        """The shape of theirs, from that of ours."""
        count = self.parts(spec)
        rows = (ours[0] // count, *ours[1:])
        return (count, *(rows[::-1] if self.transposed else rows))


Rearrangement = Reorder | Stacked
"""One of theirs is one of ours with its numbers in another order."""


@dataclass(frozen=True)
class Ignore:
    """Tensors of theirs that are not used here (``*`` matches anything), and why."""

    theirs: str
    reason: str


@dataclass(frozen=True)
class Copy:
    """A second name of theirs for one tensor of ours, checked to be equal to it and stored once.

    A file that has the tensor only under this name can also be read.
    """

    theirs: str
    ours: str


@dataclass(frozen=True)
class Same:
    """Every tensor of ours under its own name, unless another entry names it."""


TensorRule = Rename | Concat | Reorder | Stacked | Copy | Ignore | Same


def of_encoder(rules: Iterable[TensorRule], encoder: EncoderSpec) -> tuple[TensorRule, ...]:
    """The rules without those of other encoders."""
    return tuple(
        rule
        for rule in rules
        if not isinstance(rule, Rename | Concat) or rule.where is None or rule.where(encoder)
    )
