"""Queries with their documents, in batches in which no text is a false negative."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.training.data.labeled import ShuffledItems


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text that is encoded alone, or a pair of texts that is encoded together."""

    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    key: str = ""
    """Equal for equal texts, whatever their prompt is."""
    global_tokens: tuple[int, ...] = ()
    """Positions of global tokens, for encoders that have them."""
    query: range | None = None
    """Positions of the query of a pair that attends to itself alone, see `PackedBatch.queries_T`."""


@dataclass(frozen=True, eq=False)
class RankedTexts:
    """A query, and documents of which the first answers it. Equal texts may share one `TokenizedText`."""

    query: TokenizedText
    documents: tuple[TokenizedText, ...]
    """The positive document, then negatives. For a cross-encoder, the query with each document."""
    scores: NDArray[np.float32] | None = None
    """A teacher's score of each document, in their order."""

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return len(self.query.ids) + sum(len(document.ids) for document in self.documents)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all texts: query, positive document, negatives."""
        return (self.query.key, *(document.key for document in self.documents))


class RankingBatches(ShuffledItems[RankedTexts]):
    """Shuffled epochs in batches in which no query and no positive document repeats, see `ShuffledItems`.

    A text that is a query or a positive document of one item would be a false negative of the others, so it
    occurs in no other item of its batch, as with ``NO_DUPLICATES`` of `sentence-transformers`. An item that
    does not fit waits for the next batch with room for it. A batch has ``batch_size`` items in
    ``micro_batches`` parts of equal size; it is smaller only if a whole epoch has not enough items that fit.

    Args:
        items: all training items.
        batch_size: items per step.
        micro_batches: micro-batches per step; the texts of one do not see those of another.
        seed: determines the order of every epoch.
        distinct: whether repeated texts are kept apart.
    """

    unit = "queries"

    def __init__(
        self,
        items: Sequence[RankedTexts],
        *,
        batch_size: int,
        micro_batches: int = 1,
        seed: int = 0,
        distinct: bool = True,
    ) -> None:
        super().__init__(items, batch_size=batch_size, micro_batches=micro_batches, seed=seed)
        self.distinct = distinct
        self._read = 0
        """Items taken from the stream so far, waiting ones included."""
        self._waiting: list[int] = []
        self._given = 0

    def _choose(self, count: int) -> NDArray[np.int64]:
        """The items of the next batch: those that wait and fit, then those of the stream that fit."""
        chosen: list[int] = []
        texts: set[str] = set()
        queries: set[str] = set()
        still, refused = [], 0
        stream = self._stream()
        waiting = iter(self._waiting)
        while len(chosen) < self.batch_size and refused < len(self.items):
            index = next(waiting, None)
            fresh = index is None
            if index is None:
                index = next(stream)
            keys = self.items[index].keys
            if self.distinct and (not texts.isdisjoint(keys[:2]) or not queries.isdisjoint(keys)):
                still.append(index)
                refused += fresh
                continue
            chosen.append(index)
            texts.update(keys)
            queries.update(keys[:2])
        self._waiting = still + list(waiting)
        if len(chosen) < count:
            raise InvalidRequest(
                f"only {len(chosen)} of the {len(self.items)} training items differ in query and positive "
                f"document, and a step has {count} micro-batches; lower micro_batches"
            )
        self._given += len(chosen)
        return np.array(chosen)

    def _tokens_of(self, item: RankedTexts) -> int:
        return item.tokens

    def _stream(self) -> Iterator[int]:
        while True:
            epoch, place = divmod(self._read, len(self.items))
            self._read += 1
            yield int(self.order_of(epoch)[place])

    def state(self) -> dict[str, Any]:
        """The position; see `Batches`."""
        return {
            "read": self._read,
            "waiting": list(self._waiting),
            "given": self._given,
            "tokens": self._tokens,
            "items": len(self.items),
            "seed": self.seed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at a position; see `Batches`."""
        self._check_position(state.get("items"), state.get("seed"))
        self._read, self._given, self._tokens = (int(state[name]) for name in ("read", "given", "tokens"))
        self._waiting = [int(index) for index in state["waiting"]]

    @property
    def epochs(self) -> Mapping[str, float]:
        """How often all items have been read."""
        return {"train": self._given / len(self.items)}
