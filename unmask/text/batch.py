"""Packed batches: the tokens of all sequences end to end, with the offset of each sequence.

Pairs whose query attends to nothing else are packed with equal queries once. Schlatt, Fröbe & Hagen 2024
(*Investigating the Effects of Sparse Attention on Cross-Encoders*) train cross-encoders in which tokens of
the query do not attend to the document. The states of a query then depend on no document, and one encoding
is exact for all of its documents.

Axes: A places that attention reads, where some packed tokens belong to several sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.text.encoding import Encoding


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Where the sequences of a packed batch begin and end; kept on the host, without torch.

    Sequence s owns the tokens ``offsets[s]`` to ``offsets[s + 1]``, the end not included.
    """

    offsets: NDArray[np.int64]
    """Shape (S + 1,), starting at 0, strictly increasing: a sequence has at least one token."""
    globals_T: NDArray[np.bool_] | None = None
    """Which tokens attend to their whole sequence and are attended to by all of it, in encoders whose
    attention pattern has global tokens; None for none."""
    unattended_T: NDArray[np.bool_] | None = None
    """Which tokens attend to their sequence and are attended to by no token, not even by themselves, such as
    the mask tokens that ColBERT appends to a query; None for none."""
    expansion: "Expansion | None" = None
    """What attention reads where some tokens are packed once and belong to several sequences; None: what is
    packed. See `unmask.text.batch`."""

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 1).any():
            raise InvalidRequest(
                f"offsets must start at 0 and rise by at least one token each, not {offsets.tolist()[:8]}"
            )
        if self.globals_T is not None and self.globals_T.shape != (self.token_count,):
            raise InvalidRequest(
                f"{len(self.globals_T)} tokens are marked as global or not, and there are {self.token_count}"
            )
        if self.unattended_T is not None:
            self._check_unattended(self.unattended_T)

    def _check_unattended(self, unattended_T: NDArray[np.bool_]) -> None:
        if unattended_T.shape != (self.token_count,):
            raise InvalidRequest(
                f"{len(unattended_T)} tokens are marked as attended to or not, and there are "
                f"{self.token_count}"
            )
        if np.logical_and.reduceat(unattended_T, self.offsets[:-1]).any():
            raise InvalidRequest("no token of a sequence may be attended to; leave one unmarked")

    @classmethod
    def of_lengths(
        cls,
        lengths: Sequence[int] | NDArray[np.int64],
        globals_T: NDArray[np.bool_] | None = None,
        unattended_T: NDArray[np.bool_] | None = None,
    ) -> "SequenceLayout":
        """The layout of sequences with these token counts, in this order."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(offsets, globals_T, unattended_T)

    @property
    def sequence_count(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def token_count(self) -> int:
        """T."""
        return int(self.offsets[-1])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, shape (S,)."""
        return np.diff(self.offsets)

    @cached_property
    def positions_T(self) -> NDArray[np.int64]:
        """Each token's position within its own sequence, from 0."""
        if self.expansion is not None:
            return self.expansion.positions_T
        return np.arange(self.token_count) - np.repeat(self.offsets[:-1], self.lengths)

    def positions_without(self, ids_T: NDArray[np.int64], left_out: int | None) -> NDArray[np.int64]:
        """`positions_T`, (T,), where tokens of id ``left_out`` do not count and have -1; None counts all."""
        if left_out is None or not (ids_T == left_out).any():
            return self.positions_T
        if self.expansion is not None:
            whole, tokens_A = self.expansion.layout, self.expansion.tokens_A
            # A query comes first as a sequence of its own, then within whole ones, where its positions count.
            last_T = np.empty(self.token_count, np.int64)
            last_T[tokens_A] = np.arange(len(tokens_A))
            return whole.positions_without(ids_T[tokens_A], left_out)[last_T]
        counted_T = ids_T != left_out
        count_T = np.cumsum(counted_T)
        before_S = np.concatenate(([0], count_T))[self.offsets[:-1]]
        return np.where(counted_T, count_T - 1 - np.repeat(before_S, self.lengths), -1)

    @cached_property
    def sequence_of_T(self) -> NDArray[np.int64]:
        """The index of each token's sequence, from 0."""
        return np.repeat(np.arange(self.sequence_count), self.lengths)

    def repeated(self, copies: int) -> "SequenceLayout":
        """The layout of so many copies of this batch, end to end.

        Raises:
            InvalidRequest: sequences of the batch share tokens.
        """
        if copies == 1:
            return self
        if self.expansion is not None:
            raise InvalidRequest("a batch whose sequences share tokens is not repeated; pack whole sequences")
        globals_T, unattended_T = (
            None if marks is None else np.tile(marks, copies) for marks in (self.globals_T, self.unattended_T)
        )
        return SequenceLayout.of_lengths(np.tile(self.lengths, copies), globals_T, unattended_T)

    def rows(self, sequence: int) -> slice:
        """The tokens of one sequence."""
        return slice(int(self.offsets[sequence]), int(self.offsets[sequence + 1]))


@dataclass(frozen=True, eq=False)
class Expansion:
    """The sequences that attention reads, of A tokens, where fewer tokens T are packed.

    Every token of a sequence has queries, keys and values there; a packed token takes the attention output of
    one place.
    """

    layout: SequenceLayout
    tokens_A: NDArray[np.int64]
    """The packed token at each place."""
    places_T: NDArray[np.int64]
    """The place whose output each packed token takes."""
    positions_T: NDArray[np.int64]
    """Each packed token's position within the sequences that hold it."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Token ids and token types of several sequences, end to end, without padding or mask."""

    ids_T: NDArray[np.int64]
    token_type_ids_T: NDArray[np.int64]
    layout: SequenceLayout
    queries_T: NDArray[np.bool_] | None = None
    """Which tokens are of a query that attends to nothing else of its sequence, so that its states depend on
    no document; None for none. An encoder computes equal queries once."""

    @classmethod
    def of_ids(
        cls,
        ids: Sequence[Sequence[int] | NDArray[np.int64]],
        token_type_ids: Sequence[Sequence[int] | NDArray[np.int64]] | None = None,
        global_tokens: Sequence[Sequence[int]] | None = None,
        unattended: Sequence[Sequence[int]] | None = None,
        queries: Sequence[range] | None = None,
    ) -> "PackedBatch":
        """Pack sequences of ids end to end, in the given order.

        Args:
            ids: token ids of each sequence.
            token_type_ids: one list per sequence; 0 by default.
            global_tokens: the positions of each sequence's global tokens, counted from its beginning;
                none by default.
            unattended: the positions of each sequence's tokens that are not attended to; none by default.
            queries: the positions of each sequence's query, see `queries_T`; none by default.

        Raises:
            InvalidRequest: there is no sequence, or another number of types or positions than of ids.
        """
        if not len(ids):
            raise InvalidRequest("a batch needs at least one sequence, and none was given")
        ids_T = np.concatenate([np.asarray(ids_of_text, dtype=np.int64) for ids_of_text in ids])
        if token_type_ids is None:
            token_type_ids_T = np.zeros_like(ids_T)
        else:
            token_type_ids_T = np.concatenate(
                [np.asarray(types_of_text, dtype=np.int64) for types_of_text in token_type_ids]
            )
        if token_type_ids_T.shape != ids_T.shape:
            raise InvalidRequest(f"{len(token_type_ids_T)} token type ids were given for {len(ids_T)} ids")
        lengths = [len(ids_of_text) for ids_of_text in ids]
        marks = None if global_tokens is None else _marks(lengths, global_tokens, "global")
        unseen = unattended is not None and any(map(len, unattended))
        hidden = _marks(lengths, unattended, "unattended") if unattended is not None and unseen else None
        alone = None if queries is None else _marks(lengths, queries, "query")
        return cls(ids_T, token_type_ids_T, SequenceLayout.of_lengths(lengths, marks, hidden), alone)


def _marks(lengths: Sequence[int], places: Sequence[Sequence[int]], kind: str) -> NDArray[np.bool_]:
    if len(places) != len(lengths):
        raise InvalidRequest(f"{kind} tokens are given for {len(places)} sequences of {len(lengths)}")
    marks = [np.zeros(length, dtype=np.bool_) for length in lengths]
    for mark, chosen in zip(marks, places, strict=True):
        for place in chosen:
            if not 0 <= place < len(mark):
                raise InvalidRequest(f"{kind} token {place} is not in a sequence of {len(mark)} tokens")
            mark[place] = True
    return np.concatenate(marks)


def check_unpooled(layout: SequenceLayout, skipped: int) -> None:
    """Refuse to pool a text that has nothing besides a prompt of ``skipped`` tokens.

    Raises:
        InvalidRequest: a text has no token to pool.
    """
    if skipped and layout.lengths.min() <= skipped:
        raise InvalidRequest(f"a text has no token besides the {skipped} of its prompt; leave the prompt out")


def token_budget_batches(lengths: NDArray[np.int64], token_budget: int) -> Iterator[NDArray[np.int64]]:
    """Split sequences into batches of at most ``token_budget`` tokens, longest first.

    Sequences of equal length become neighbors, and attention runs them as one rectangle. A sequence
    longer than the budget forms its own batch. The longest come first so that peak memory occurs at
    the start and the remaining time is not underestimated.

    Args:
        lengths: tokens of each sequence, shape (S,).
        token_budget: the maximum number of tokens per batch, at least 1.

    Yields:
        Indices into ``lengths``; every index occurs in exactly one batch.
    """
    at_least("token_budget", token_budget, 1)
    order = np.argsort(-lengths, kind="stable")
    start, tokens = 0, 0
    for end, sequence in enumerate(order):
        if end > start and tokens + lengths[sequence] > token_budget:
            yield order[start:end]
            start, tokens = end, 0
        tokens += int(lengths[sequence])
    if len(order):
        yield order[start:]


class SharedBatch(NamedTuple):
    """A batch in which each different query is packed once, before what is left of all sequences."""

    batch: PackedBatch
    tokens_T: NDArray[np.int64]
    """The token of ``batch`` that stands for each token of the given batch."""


def query_places(pair: Encoding) -> range:
    """The positions of the first text of a pair and of the special tokens between the two.

    Raises:
        InvalidRequest: it is not a pair.
    """
    first, second = (np.flatnonzero(pair.sequence_ids == text) for text in (0, 1))
    if not len(first) or not len(second) or first[0] > second[0]:
        raise InvalidRequest("a shared query needs a query and a document after it; give pairs of texts")
    return range(int(first[0]), int(second[0]))


def share_queries(whole: PackedBatch) -> SharedBatch:
    """Pack equal queries once; see `PackedBatch.queries_T`.

    Attention reads every query as a sequence of its own, and then every given sequence whole, where what it
    computes for tokens of the query is discarded.

    Raises:
        InvalidRequest: a query is not a run of tokens, is its whole sequence, or there are global tokens or
            tokens that are not attended to.
    """
    layout, queries_T = whole.layout, whole.queries_T
    if queries_T is None or layout.globals_T is not None or layout.unattended_T is not None:
        raise InvalidRequest(
            "a shared query needs marks of its tokens, and neither global tokens nor tokens that are not "
            "attended to; encode these sequences without marks"
        )
    numbers: dict[tuple[int, bytes, bytes], int] = {}
    runs: list[NDArray[np.int64]] = []
    query_of: list[int] = []
    for sequence in range(layout.sequence_count):
        rows = layout.rows(sequence)
        run = rows.start + np.flatnonzero(queries_T[rows])
        if not 0 < len(run) < rows.stop - rows.start or run[-1] - run[0] >= len(run):
            raise InvalidRequest(
                f"sequence {sequence + 1} has {len(run)} query tokens of {rows.stop - rows.start}; mark one "
                "run of tokens, and not all"
            )
        key = (int(run[0]) - rows.start, whole.ids_T[run].tobytes(), whole.token_type_ids_T[run].tobytes())
        if key not in numbers:
            numbers[key] = len(runs)
            runs.append(run)
        query_of.append(numbers[key])
    starts = np.cumsum([0, *map(len, runs)])
    shared, own_T = int(starts[-1]), np.flatnonzero(~queries_T)
    tokens_T = np.empty(layout.token_count, dtype=np.int64)
    tokens_T[own_T] = shared + np.arange(len(own_T))
    tokens_T[queries_T] = np.concatenate([np.arange(*starts[query : query + 2]) for query in query_of])
    packed_T = np.concatenate([*runs, own_T])
    lengths = [len(run) for run in runs]
    expansion = Expansion(
        SequenceLayout.of_lengths([*lengths, *layout.lengths]),
        tokens_A=np.concatenate((np.arange(shared), tokens_T)),
        places_T=np.concatenate((np.arange(shared), shared + own_T)),
        positions_T=layout.positions_T[packed_T],
    )
    own_lengths = np.add.reduceat(~queries_T, layout.offsets[:-1], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum([*lengths, *own_lengths]))).astype(np.int64)
    batch = PackedBatch(
        whole.ids_T[packed_T],
        whole.token_type_ids_T[packed_T],
        SequenceLayout(offsets, expansion=expansion),
    )
    return SharedBatch(batch, tokens_T)
