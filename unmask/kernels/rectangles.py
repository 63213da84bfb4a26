"""A packed batch as rectangles: runs of sequences of equal length, which need neither padding nor mask."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class Rectangles:
    """A packed batch as runs of sequences of equal length."""

    shapes: tuple[tuple[int, int], ...]
    """(B, N) of each run, in order; their products sum to T."""
    tokens_T: Tensor | None
    """Indices that sort packed tokens by run; None if they are already in that order."""
    restore_T: Tensor | None
    """The inverse permutation."""

    @classmethod
    def of(cls, layout: SequenceLayout, device: torch.device) -> "Rectangles":
        """One run for each distinct length; tokens are reordered only if equal lengths are not adjacent."""
        lengths = layout.lengths
        runs = [(length, len(list(run))) for length, run in groupby(lengths.tolist())]
        if len({length for length, _ in runs}) == len(runs):
            return cls(tuple((count, length) for length, count in runs), None, None)
        order = np.argsort(lengths, kind="stable")
        tokens_T = np.concatenate([np.arange(*layout.offsets[s : s + 2]) for s in order])
        distinct, counts = np.unique(lengths, return_counts=True)
        shapes = tuple(zip(counts.tolist(), distinct.tolist(), strict=True))
        return cls(
            shapes,
            torch.from_numpy(tokens_T).to(device),
            torch.from_numpy(np.argsort(tokens_T)).to(device),
        )

    def cut(self, x: Tensor) -> Iterator[Tensor]:
        """Packed tokens (T, ...) as one (B, N, ...) for each run; views if no token has to move."""
        yield from self.split(self.sort(x))

    def sort(self, x: Tensor) -> Tensor:
        """Packed tokens in the order of the runs."""
        return x if self.tokens_T is None else x.index_select(0, self.tokens_T)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of `sort`."""
        return x if self.restore_T is None else x.index_select(0, self.restore_T)

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """Tokens in the order of the runs as one (B, N, ...) for each run, views.

        One split instead of slices: the gradient of each separate slice would be as large as the batch.
        """
        parts = torch.split(x, [count * length for count, length in self.shapes])
        for shape, part in zip(self.shapes, parts, strict=True):
            yield part.view(*shape, *x.shape[1:])

    def join(self, parts: list[Tensor]) -> Tensor:
        """The inverse of `cut`."""
        flat = [part.flatten(0, 1) for part in parts]
        return self.restore(flat[0] if len(flat) == 1 else torch.cat(flat))
