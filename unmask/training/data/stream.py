"""Sources to micro-batches: shuffled, mixed by weight, packed; the same on any number of processes."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.training.data.sampling import (
    EpochOrder,
    SampledChunks,
    SourceCursor,
    draw,
    key_of,
    permute,
    shares,
)
from unmask.training.data.shards import ShardSet


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


def pack(
    costs: NDArray[np.int64], capacity: int, bins: int | None = None, waited: int = 0
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill bins with chunks; chunks that fit into none of them are left over.

    If bins are much larger than chunks, most of each bin is filled with chunks in order, so that a bin has
    chunks of all lengths; the remaining chunks, longest first, go where they leave the least room (best-fit
    decreasing, Johnson 1973). If bins are small, all chunks are placed by best fit.

    Args:
        costs: tokens of each chunk, special tokens included, at most ``capacity`` each, shape (N,).
        capacity: tokens per bin.
        bins: number of bins to fill; None for as many as hold all chunks.
        waited: number of chunks at the start that were left over before; they are placed first, so that none
        waits forever.

    Returns:
        The chunks of each non-empty bin, as indices; and those left over, in order.
    """
    if bins is None:
        return _best_fit(costs, np.argsort(-costs, kind="stable"), capacity, [], None)
    largest = int(costs.max(initial=1))
    reserve = max(2 * largest, capacity // 8)
    start: list[NDArray[np.int64]] = []
    rest = np.arange(len(costs))
    if 2 * reserve <= capacity:
        start, rest = _as_they_come(costs, capacity - reserve, bins)
    # Longest first, but chunks that have waited come before all others.
    order = rest[np.lexsort((-costs[rest], rest >= waited))]
    return _best_fit(costs, order, capacity, start, bins)


def _as_they_come(
    costs: NDArray[np.int64], level: int, bins: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill every bin in order to ``level``, exceeding it by at most one chunk; also return the remaining
    chunks."""
    ends = np.cumsum(costs)
    start, filled = 0, []
    for _ in range(bins):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + level)) + 1
        if stop >= len(costs):
            break
        filled.append(np.arange(start, stop))
        start = stop
    return filled, np.arange(start, len(costs))


def _best_fit(
    costs: NDArray[np.int64],
    order: NDArray[np.int64],
    capacity: int,
    start: list[NDArray[np.int64]],
    bins: int | None,
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    contents = [list(chunks) for chunks in start]
    # (room, bin), sorted: the first that is large enough leaves the least room.
    rooms = sorted((capacity - int(costs[chunks].sum()), number) for number, chunks in enumerate(start))
    left_over: list[int] = []
    for chunk, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        at = bisect_left(rooms, (cost, 0))
        if at < len(rooms):
            room, number = rooms.pop(at)
        elif bins is None or len(contents) < bins:
            room, number = capacity, len(contents)
            contents.append([])
        else:
            left_over.append(chunk)
            continue
        contents[number].append(chunk)
        if room > cost:
            insort(rooms, (room - cost, number))
    filled = [np.array(content, dtype=np.int64) for content in contents]
    return filled, np.array(sorted(left_over), dtype=np.int64)


STATE_VERSION = 1


@dataclass(frozen=True, eq=False)
class _ShuffleBuffer:
    """Chunks that are packed together, and the state before them."""

    before: tuple[SourceCursor, ...]
    carried_before: SampledChunks
    after: list[SourceCursor]
    carried_after: SampledChunks
    bins: list[tuple[SampledChunks, NDArray[np.int64]]]
    """With the numbers of the chunks in their sources."""


class ChunkStream:
    """An endless sequence of micro-batches of whole chunks.

    Each source is read repeatedly, in a different order each epoch, and each of its chunks occurs once per
    epoch. Chunks are drawn by weight into a shuffle buffer and packed, and the buffer's bins are returned in
    shuffled order; chunks that fit into no bin come first in the next buffer. Everything follows from the
    seed.

    Args:
        sets: the chunks of each source and its weight: its share of the tokens, relative to the others.
        seed: determines the orders.
        micro_tokens: maximum tokens per micro-batch, special tokens included.
        extra_tokens: special tokens that the objective adds to a chunk.
        pool_bins: micro-batches per shuffle buffer.
        shuffle_files: files of tokens whose chunks are shuffled together, see `EpochOrder`; None for all.

    Raises:
        InvalidRequest: a chunk does not fit into a micro-batch, sets have the same name or different
        tokenizers, or a number is out of range.
    """

    def __init__(
        self,
        sets: Sequence[tuple[ShardSet, float]],
        *,
        seed: int,
        micro_tokens: int,
        extra_tokens: int,
        pool_bins: int = 64,
        shuffle_files: int | None = None,
    ) -> None:
        self._sets = [each for each, _ in sets]
        self._orders = [EpochOrder(each, seed, shuffle_files) for each in self._sets]
        self._shuffle_files = shuffle_files
        self._share_S = shares([weight for _, weight in sets])
        self._seed, self._capacity, self._extra = seed, micro_tokens, extra_tokens
        self._pool_bins = pool_bins
        at_least("pool_bins", pool_bins, 1)
        check_sets(self._sets, micro_tokens, extra_tokens)
        self._means = [each.token_count / each.count for each in self._sets]
        self._first_document = np.cumsum([0, *(each.document_count for each in self._sets)]).tolist()
        nothing = SampledChunks(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        self._bins = self._tokens = self._given = 0
        self._pool = self._make_pool([SourceCursor() for _ in self._sets], nothing)

    def next(self, count: int, *, rank: int = 0, world: int = 1) -> list[list[Chunk]]:
        """The next ``count`` micro-batches, of which those numbered rank, rank + world, ... are returned.

        The others are counted and not read. Numbers begin at 0 in each call.
        """
        if not 0 <= rank < world:
            raise InvalidRequest(f"rank is {rank} of a world of {world}; it must be from 0 to {world - 1}")
        micro_batches = []
        for number in range(count):
            if self._given == len(self._pool.bins):
                self._pool = self._make_pool(self._pool.after, self._pool.carried_after)
                self._given = 0
            bin_, numbers = self._pool.bins[self._given]
            self._given += 1
            self._bins += 1
            self._tokens += int(bin_.lengths.sum()) + self._extra * len(bin_.lengths)
            if number % world == rank:
                micro_batches.append(self._read(bin_, numbers))
        return micro_batches

    def state(self) -> dict[str, Any]:
        """The stream's position, as a few JSON numbers."""
        return {
            "version": STATE_VERSION,
            "settings": self._settings(),
            "inputs": {each.name: each.inputs for each in self._sets},
            "sources": [[cursor.chunks, cursor.tokens] for cursor in self._pool.before],
            "carried": [
                [int(source), int(position)]
                for source, position in zip(
                    self._pool.carried_before.sources, self._pool.carried_before.positions, strict=True
                )
            ],
            "given": self._given,
            "bins": self._bins,
            "tokens": self._tokens,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of a stream with the same sources and settings.

        Raises:
            InvalidRequest: the state belongs to other sources or settings.
        """
        if state.get("version") != STATE_VERSION:
            raise InvalidRequest(
                f"the data state has version {state.get('version')}, and this program reads "
                f"{STATE_VERSION}; start again"
            )
        self._refuse_other_text(state)
        for name, value in self._settings().items():
            if state["settings"].get(name) != value:
                raise InvalidRequest(
                    f"the data state was written with {name} {state['settings'].get(name)!r}, and now "
                    f"it is {value!r}; continue with the same value, or start again"
                )
        carried = np.array(state["carried"], dtype=np.int64).reshape(-1, 2)
        lengths = np.zeros(len(carried), dtype=np.int64)
        for source in range(len(self._sets)):
            of_it = carried[:, 0] == source
            lengths[of_it] = self._sets[source].lengths[self._orders[source].chunks(carried[of_it, 1])]
        before = [SourceCursor(chunks, tokens) for chunks, tokens in state["sources"]]
        self._pool = self._make_pool(before, SampledChunks(carried[:, 0], carried[:, 1], lengths))
        self._given, self._bins, self._tokens = state["given"], state["bins"], state["tokens"]

    @property
    def fill_ratio(self) -> float:
        """Tokens, special tokens included, divided by the capacity of the micro-batches so far; 1 before the
        first."""
        return self._tokens / (self._bins * self._capacity) if self._bins else 1.0

    @property
    def tokens(self) -> int:
        """Tokens in the micro-batches so far, special tokens included."""
        return self._tokens

    @property
    def epochs(self) -> dict[str, float]:
        """Epochs of each source so far; a shuffle buffer is counted when it is finished."""
        return {
            each.name: cursor.chunks / each.count
            for each, cursor in zip(self._sets, self._pool.before, strict=True)
        }

    def _settings(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "micro_tokens": self._capacity,
            "extra_tokens": self._extra,
            "pool_bins": self._pool_bins,
            # Absent in states of earlier versions, which shuffled all chunks.
            "shuffle_files": self._shuffle_files,
            "weights": self._share_S.tolist(),
            "sets": [[each.name, each.digest] for each in self._sets],
        }

    def _refuse_other_text(self, state: Mapping[str, Any]) -> None:
        before = {name: digest for name, digest in state["settings"].get("sets", [])}
        for each in self._sets:
            if before.get(each.name, each.digest) == each.digest:
                continue
            old, now = state.get("inputs", {}).get(each.name, {}), each.inputs
            changed = sorted(name for name in old.keys() | now.keys() if old.get(name) != now.get(name))
            what = f"{', '.join(changed[:3])} of source {each.name}" if changed else f"source {each.name}"
            raise InvalidRequest(
                f"the text of {what} has changed since the run was started; restore the previous text, "
                "or start again in another folder"
            )

    def _lengths(self, source: int, start: int, count: int) -> NDArray[np.int64]:
        return self._sets[source].lengths[self._orders[source].chunks(start + np.arange(count))]

    def _make_pool(self, before: Sequence[SourceCursor], carried: SampledChunks) -> _ShuffleBuffer:
        carried_tokens = int(carried.lengths.sum()) + self._extra * len(carried.lengths)
        tokens = self._pool_bins * self._capacity - carried_tokens
        new, after = draw(
            self._lengths,
            before,
            share_S=self._share_S,
            mean_S=self._means,
            cost=max(1, tokens),
            extra=self._extra,
        )
        pool = SampledChunks(
            *(
                np.concatenate([getattr(part, name) for part in (carried, new)])
                for name in ("sources", "positions", "lengths")
            )
        )
        bins, left_over = pack(
            pool.lengths + self._extra, self._capacity, self._pool_bins, waited=len(carried.lengths)
        )
        key = key_of("bins", self._seed, *(each.chunks for each in before))
        order = permute(np.arange(len(bins)), len(bins), key)
        numbers = np.empty_like(pool.positions)
        for source in range(len(self._sets)):
            of_it = pool.sources == source
            numbers[of_it] = self._orders[source].chunks(pool.positions[of_it])
        for shards, order_of_it, cursor in zip(self._sets, self._orders, before, strict=True):
            shards.want(order_of_it.files(cursor.chunks))
        shuffled = [(_some(pool, bins[i]), numbers[bins[i]]) for i in order]
        return _ShuffleBuffer(tuple(before), carried, after, _some(pool, left_over), shuffled)

    def _read(self, bin_: SampledChunks, numbers: NDArray[np.int64]) -> list[Chunk]:
        chunks: dict[int, Chunk] = {}
        for source in np.unique(bin_.sources).tolist():
            places = np.flatnonzero(bin_.sources == source)
            loaded = read_chunks(self._sets[source], numbers[places], self._first_document[source])
            chunks.update(zip(places.tolist(), loaded, strict=True))
        return [chunks[place] for place in range(len(chunks))]


def _some(samples: SampledChunks, which: NDArray[np.int64]) -> SampledChunks:
    return SampledChunks(samples.sources[which], samples.positions[which], samples.lengths[which])


def read_chunks(shards: ShardSet, numbers: NDArray[np.int64], first_document: int = 0) -> list[Chunk]:
    """Read chunks of a set; documents are numbered from ``first_document``."""
    documents = (first_document + shards.documents[numbers]).tolist()
    return [Chunk(ids, document) for ids, document in zip(shards.read(numbers), documents, strict=True)]


def check_sets(sets: Sequence[ShardSet], micro_tokens: int, extra_tokens: int) -> None:
    """Raise `InvalidRequest` unless every chunk fits and the sets have one tokenizer and distinct names."""
    for each in sets:
        longest = int(each.lengths.max())
        if longest + extra_tokens > micro_tokens:
            raise InvalidRequest(
                f"source {each.name} has a chunk of {longest} tokens, to which {extra_tokens} special ones "
                f"are added, and a micro-batch holds {micro_tokens}; raise micro_tokens or lower max_tokens "
                "of the source"
            )
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"the sources are called {', '.join(names)}; give each its own name")
    if len({each.manifest["tokenizer"] for each in sets}) > 1:
        raise InvalidRequest(
            f"the sources {', '.join(names)} were made with different tokenizers; tokenize them with the same"
        )


def held_out(
    shards: ShardSet, *, micro_tokens: int, extra_tokens: int, tokens: int | None = None
) -> list[list[Chunk]]:
    """Micro-batches for evaluation, always the same ones in the same order.

    Args:
        shards: held-out chunks.
        micro_tokens: maximum tokens per micro-batch, special tokens included.
        extra_tokens: special tokens that the objective adds to a chunk.
        tokens: approximate number of tokens, special tokens included; None for all chunks.
    """
    check_sets([shards], micro_tokens, extra_tokens)
    order = permute(np.arange(shards.count), shards.count, key_of("held out"))
    costs = shards.lengths[order] + extra_tokens
    if tokens is not None:
        order = order[: int(np.searchsorted(np.cumsum(costs), tokens)) + 1]
    bins, _ = pack(shards.lengths[order] + extra_tokens, micro_tokens)
    return [read_chunks(shards, order[chosen]) for chosen in bins]
