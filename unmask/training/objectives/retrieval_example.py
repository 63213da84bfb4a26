"""A prepared batch of queries and documents, and its vectors in passes of bounded size.

Axes: P documents of all queries; Q queries.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.errors import InvalidRequest
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.training.data.ranking import RankedTexts, TokenizedText
from unmask.training.objectives.interface import Example
from unmask.training.objectives.retrieval_losses import Groups

TERM = "retrieval"
"""The term of the loss, by which its figures are named."""

PAIRS = "pairs"
"""The term of a loss that is a mean over queries with one document each."""


@dataclass(frozen=True, eq=False)
class RankingExample(Example):
    """All queries, then all documents, packed."""

    query_of_P: NDArray[np.int64]
    """The query of each document."""
    positive_Q: NDArray[np.int64]
    """The place of each query's positive document."""
    scores_P: NDArray[np.float32] | None
    """A teacher's score of each document."""
    queries: int
    """How many of the packed sequences are queries; 0 where a query is encoded with each document, or not
    encoded."""

    def groups(self, device: torch.device) -> Groups:
        """Which documents belong to which query, on a device."""
        query_of_P, positive_Q = (
            torch.from_numpy(places).to(device) for places in (self.query_of_P, self.positive_Q)
        )
        return Groups(query_of_P, positive_Q)

    def taught(self, device: torch.device) -> Tensor:
        """A teacher's scores on a device.

        Raises:
            InvalidRequest: the data have none.
        """
        if self.scores_P is None:
            raise InvalidRequest(
                "the loss learns from a teacher's scores, and the data have none; set data.scores"
            )
        return torch.from_numpy(self.scores_P).to(device)


def prepared(
    items: Sequence[RankedTexts],
    draw: np.random.Generator,
    negatives: int | None,
    *,
    together: bool = False,
    queries: bool = True,
) -> RankingExample:
    """Pack queries and documents.

    Args:
        items: a query with its documents each.
        draw: decides which negatives are taken.
        negatives: of each query at most so many; None takes all.
        together: whether documents hold their query already, so that queries are not encoded.
        queries: False leaves queries out of the batch.
    """
    documents: list[TokenizedText] = []
    scores: list[NDArray[np.float32]] = []
    counts = []
    for item in items:
        chosen = _chosen(len(item.documents), draw, negatives)
        documents += [item.documents[place] for place in chosen]
        if item.scores is not None:
            scores.append(item.scores[chosen])
        counts.append(len(chosen))
    encoded = [item.query for item in items] if queries and not together else []
    texts = encoded + documents
    batch = packed(texts)
    if scores and len(scores) < len(items):
        raise InvalidRequest("some queries have a teacher's scores and some have none; give scores of all")
    return RankingExample(
        {TERM: len(items), **({PAIRS: len(documents)} if together else {})},
        batch.layout.token_count,
        len(texts),
        batch,
        query_of_P=np.repeat(np.arange(len(items)), counts),
        positive_Q=np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64),
        scores_P=np.concatenate(scores) if scores else None,
        queries=len(encoded),
    )


def packed(texts: Sequence[TokenizedText]) -> PackedBatch:
    """Texts end to end."""
    marks = [text.global_tokens for text in texts]
    queries = [text.query for text in texts if text.query is not None]
    return PackedBatch.of_ids(
        [text.ids for text in texts],
        [text.token_type_ids for text in texts],
        marks if any(marks) else None,
        queries=queries or None,
    )


def _chosen(count: int, draw: np.random.Generator, negatives: int | None) -> list[int]:
    """The places of the documents that are taken: the first, and some of the others in their order."""
    if negatives is None or count - 1 <= negatives:
        return list(range(count))
    return [0, *sorted((1 + draw.choice(count - 1, negatives, replace=False)).tolist())]


Encode = Callable[[PackedBatch], Tensor]
"""From a packed batch to a vector for each sequence or token."""


def parts_of(batch: PackedBatch, tokens_per_pass: int | None) -> Iterator[PackedBatch]:
    """The batch in parts of at most that many tokens, in order; a longer sequence is a part of its own."""
    layout = batch.layout
    if tokens_per_pass is None or layout.token_count <= tokens_per_pass:
        yield batch
        return
    for first, last in ranges(layout, tokens_per_pass):
        yield _part(batch, first, last)


def ranges(layout: SequenceLayout, tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of sequences of at most so many tokens, or of one longer sequence."""
    first = 0
    for last in range(1, layout.sequence_count + 1):
        after = layout.offsets[min(last + 1, layout.sequence_count)]
        if last == layout.sequence_count or after - layout.offsets[first] > tokens:
            yield first, last
            first = last


def _part(batch: PackedBatch, first: int, last: int) -> PackedBatch:
    layout = batch.layout
    rows = slice(int(layout.offsets[first]), int(layout.offsets[last]))
    marks = None if layout.globals_T is None else layout.globals_T[rows]
    inner = SequenceLayout(layout.offsets[first : last + 1] - layout.offsets[first], marks)
    queries = None if batch.queries_T is None else batch.queries_T[rows]
    return PackedBatch(batch.ids_T[rows], batch.token_type_ids_T[rows], inner, queries)


def encode_in_passes(encode: Encode, batch: PackedBatch, tokens_per_pass: int | None) -> Tensor:
    """Vectors of a whole batch, of which only one part at a time has its activations in memory.

    The first pass over a part keeps nothing but its vectors. When the gradient of the loss reaches these, the
    part is encoded again with the same dropout masks, and its gradient is added to that of the weights. So
    the gradient is that of the whole batch, at the cost of a second forward pass.

    Args:
        encode: computes the vectors of a part; must depend on nothing but weights and dropout.
        batch: all sequences.
        tokens_per_pass: the largest part; None encodes everything at once.
    """
    parts = list(parts_of(batch, tokens_per_pass))
    if len(parts) == 1:
        return encode(parts[0])
    if not torch.is_grad_enabled():
        return torch.cat([encode(part) for part in parts])
    tensors: list[Tensor] = [checkpoint(encode, part, use_reentrant=False) for part in parts]
    return torch.cat(tensors)
