"""Packed pairs whose query attends to nothing else, with equal queries packed once.

Schlatt, Fröbe & Hagen 2024 (*Investigating the Effects of Sparse Attention on Cross-Encoders*) train
cross-encoders in which tokens of the query do not attend to the document. The states of a query then depend
on no document, and one encoding is exact for all of its documents.

Axes: A places that attention reads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.text.batch import Expansion, PackedBatch, SequenceLayout
from unmask.text.encoding import Encoding


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
