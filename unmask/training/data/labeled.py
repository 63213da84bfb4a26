"""Labeled texts and pairs of them, in shuffled epochs of batches with a fixed number of texts.

Pairs are for contrastive training, counted as in SetFit (Tunstall et al. 2022).

Axes: S texts; P pairs.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest

IGNORED = -100
"""The label of a token that is not trained on, as in PyTorch's cross-entropy."""

ORDER_STREAM = 4
"""The seed stream of the order of texts; see `unmask.training.run.loop` for the others."""


@dataclass(frozen=True, eq=False)
class LabeledSequence:
    """A tokenized text (or pair) with the target of a head.

    A question and all of its choices are one item, so that they are always in the same micro-batch: the
    question with each choice, end to end.

    Axes: N tokens; C classes.
    """

    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    target: NDArray[Any]
    """A class, () int64; the values of a regression, or the labels of a multi-label text, (C,) float32; a
    class per token, (N,) int64 with `IGNORED`; the first and the last token of an answer, (2,) int64; the
    right choice, () int64."""
    global_tokens: tuple[int, ...] = ()
    """Positions of global tokens, for encoders that have them."""
    lengths: tuple[int, ...] = ()
    """The tokens of a question with each choice; empty if this is one sequence."""

    def sequences(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]]:
        """The ids, token types and global tokens of each sequence."""
        bounds = [0, *np.cumsum(self.lengths or (len(self.ids),)).tolist()]
        for start, end in pairwise(bounds):
            marks = tuple(place - start for place in self.global_tokens if start <= place < end)
            yield self.ids[start:end], self.token_type_ids[start:end], marks


def digest_of(values: Iterable[object]) -> str:
    """SHA-256 of texts and labels in their order, by which a resumed run knows its data again."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to resume a run whose inputs have changed, though names and counts are the same.

    Args:
        before: the digest of each input when the run began, by the name of the input in the error.
        now: the same of the present files.

    Raises:
        InvalidRequest: a digest differs; the message names its input.
    """
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if changed:
        raise InvalidRequest(
            f"{' and '.join(changed)} have changed since the run began; restore the files, or start another "
            "run in another folder"
        )


Item = TypeVar("Item")


class ShuffledItems(ABC, Generic[Item]):
    """Epochs over items, each in an order of its own, as a source of micro-batches.

    A step has ``batch_size`` items in ``micro_batches`` micro-batches of equal size (the first are one item
    larger where that does not divide).

    Args:
        items: all training items.
        batch_size: items per step.
        micro_batches: micro-batches per step.
        seed: determines the order of every epoch.
    """

    unit: str
    """What an item is called."""

    def __init__(
        self, items: Sequence[Item], *, batch_size: int, micro_batches: int = 1, seed: int = 0
    ) -> None:
        if not items:
            raise InvalidRequest(f"there are no training {self.unit}; name a file with at least one")
        if not 1 <= micro_batches <= batch_size:
            raise InvalidRequest(
                f"micro_batches is {micro_batches}; it must be from 1 to batch_size, which is {batch_size}"
            )
        self.items = items
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.seed = seed
        self._tokens = 0
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    @abstractmethod
    def _choose(self, count: int) -> NDArray[np.int64]:
        """The items of the next step, by their places: at least ``count``, the number of micro-batches."""

    @abstractmethod
    def _tokens_of(self, item: Item) -> int:
        """Tokens of an item."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every item is read about once."""
        return -(-len(self.items) // self.batch_size)

    def next(self, count: int, *, rank: int = 0, world: int = 1) -> Sequence[Sequence[Item]]:
        """The micro-batches of the next step; see `Batches`."""
        if count != self.micro_batches:
            raise InvalidRequest(f"{count} micro-batches were asked for; a step has {self.micro_batches}")
        chosen = self._choose(count)
        self._tokens += sum(self._tokens_of(self.items[index]) for index in chosen)
        parts = np.array_split(chosen, count)
        return [[self.items[index] for index in part] for part in parts[rank::world]]

    def order_of(self, epoch: int) -> NDArray[np.int64]:
        """The items of an epoch, by their places, in the order in which they are read."""
        if self._order[0] != epoch:
            draw = np.random.Generator(np.random.PCG64DXSM([self.seed, ORDER_STREAM, epoch]))
            self._order = (epoch, draw.permutation(len(self.items)))
        return self._order[1]

    def _check_position(self, count: object, seed: object) -> None:
        """Refuse a position in other items than these."""
        if count != len(self.items) or seed != self.seed:
            raise InvalidRequest(
                f"the run was training on {count} {self.unit} and there are {len(self.items)} now; restore "
                "the data, or start another run in another folder"
            )

    @property
    def fill_ratio(self) -> float:
        """1: a batch has a fixed number of items, and no padding."""
        return 1.0

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._tokens


class LabeledBatches(ShuffledItems[LabeledSequence]):
    """Epochs over labeled texts, see `ShuffledItems`.

    The last step of an epoch has the texts that remain, as in the Trainer of `transformers`; if they are
    fewer than the micro-batches, the order goes round to its beginning.
    """

    unit = "texts"
    _step = 0

    def _choose(self, count: int) -> NDArray[np.int64]:
        epoch, place = divmod(self._step, self.steps_per_epoch)
        order = self.order_of(epoch)
        chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
        self._step += 1
        if len(chosen) < count:
            return np.concatenate((chosen, np.resize(order, count - len(chosen))))
        return chosen

    def _tokens_of(self, item: LabeledSequence) -> int:
        return len(item.ids)

    def state(self) -> dict[str, Any]:
        """The position; see `Batches`."""
        return {
            "step": self._step,
            "tokens": self._tokens,
            "texts": len(self.items),
            "seed": self.seed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at a position; see `Batches`."""
        self._check_position(state.get("texts"), state.get("seed"))
        self._step, self._tokens = int(state["step"]), int(state["tokens"])

    @property
    def epochs(self) -> Mapping[str, float]:
        """How often all texts have been read."""
        return {"train": self._step / self.steps_per_epoch}


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
