"""Pairs of labeled texts for contrastive training, counted as in SetFit (Tunstall et al. 2022).

Axes: S texts; P pairs.
"""

from collections.abc import Sequence
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledSequence

SamplingStrategy = Literal["oversampling", "undersampling", "unique"]
"""How many pairs of one class and of two classes an epoch has: the larger number of both, the smaller one, or
each pair once."""

MOST_PAIRS = 10_000_000
"""Pairs of different texts that are drawn from; more would not fit into the memory of a small machine."""


class TextPairs(Sequence[LabeledSequence]):
    """Pairs of texts as items to train on; each is made when it is read.

    An item has both texts, end to end, and the target 1.0 for one class or 0.0 for two.

    Args:
        texts: all texts.
        alike_P2: for each pair of one class, the numbers of its texts; a pair may repeat.
        unlike_P2: the same for pairs of two classes.
    """

    def __init__(
        self, texts: Sequence[LabeledSequence], alike_P2: NDArray[np.int64], unlike_P2: NDArray[np.int64]
    ) -> None:
        self.texts = texts
        self.alike_P2, self.unlike_P2 = alike_P2, unlike_P2

    def described(self) -> str:
        """How many pairs there are of each kind."""
        alike, unlike = (
            f"{len(pairs_P2):,} pairs ({len(np.unique(pairs_P2, axis=0)):,} different) of {labels}"
            for pairs_P2, labels in ((self.alike_P2, "one label"), (self.unlike_P2, "two labels"))
        )
        return f"train: an epoch has {alike} and {unlike}"

    def __len__(self) -> int:
        return len(self.alike_P2) + len(self.unlike_P2)

    @overload
    def __getitem__(self, index: int) -> LabeledSequence: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LabeledSequence]: ...
    def __getitem__(self, index: int | slice) -> LabeledSequence | Sequence[LabeledSequence]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        alike, rest = place < len(self.alike_P2), place - len(self.alike_P2)
        first, second = (
            self.texts[number] for number in (self.alike_P2[place] if alike else self.unlike_P2[rest])
        )
        moved = tuple(len(first.ids) + mark for mark in second.global_tokens)
        return LabeledSequence(
            np.concatenate((first.ids, second.ids)),
            np.concatenate((first.token_type_ids, second.token_type_ids)),
            np.array(float(alike), dtype=np.float32),
            (*first.global_tokens, *moved),
            (len(first.ids), len(second.ids)),
        )


def draw_pairs(
    texts: Sequence[LabeledSequence],
    draw: np.random.Generator,
    *,
    strategy: SamplingStrategy = "oversampling",
    iterations: int | None = None,
    max_pairs: int | None = None,
) -> TextPairs:
    """The pairs of an epoch. A text is never paired with itself, and a pair has one order.

    Args:
        texts: each with its class as the target.
        draw: decides which pairs are left out or repeated.
        strategy: how many pairs of each kind there are.
        iterations: instead of a strategy, the pairs of each kind are this many for each text.
        max_pairs: half of it is the most pairs of each kind that are drawn from.

    Raises:
        InvalidRequest: there are more than `MOST_PAIRS`, or none of one kind.
    """
    possible = len(texts) * (len(texts) - 1) // 2
    if possible > MOST_PAIRS:
        raise InvalidRequest(
            f"the {len(texts):,} training texts make {possible:,} pairs and the limit is {MOST_PAIRS:,}; set "
            "few_shot.shots"
        )
    classes_S = np.array([int(text.target) for text in texts])
    pairs_P2 = draw.permutation(np.stack(np.triu_indices(len(texts), 1), axis=-1))
    alike_P = classes_S[pairs_P2[:, 0]] == classes_S[pairs_P2[:, 1]]
    kinds = [
        pairs_P2[wanted][: None if max_pairs is None else max_pairs // 2] for wanted in (alike_P, ~alike_P)
    ]
    counts = [len(kind) for kind in kinds]
    if not all(counts):
        raise InvalidRequest(
            f"the training texts make {counts[0]} pairs of one label and {counts[1]} of two labels; "
            "contrastive training needs both, so give two labels, and two texts of one at least"
        )
    if iterations is not None:
        counts = [iterations * len(texts)] * 2
    elif strategy != "unique":
        counts = [max(counts) if strategy == "oversampling" else min(counts)] * 2
    alike_P2, unlike_P2 = (
        kind[np.arange(count) % len(kind)] for kind, count in zip(kinds, counts, strict=True)
    )
    return TextPairs(texts, alike_P2, unlike_P2)
