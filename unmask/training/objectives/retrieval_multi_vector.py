"""Training of late interaction: one vector per token (ColBERT, Khattab & Zaharia 2020).

Axes: Q queries; P documents of all queries; A tokens of queries; Z tokens of documents.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import token_vectors
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.training.objectives.retrieval_example import RankingExample
from unmask.training.objectives.retrieval_losses import contrastive_loss, positives_first
from unmask.training.objectives.retrieval_ranking import RankingObjective, own_loss
from unmask.training.objectives.specs import RankingSpec

TILE = 1 << 22
"""Products of tokens in memory at once: 16 MB of float32."""


class MultiVectorObjective(RankingObjective):
    """Scores are sums over a query's tokens of the largest product with a token of the document (MaxSim).

    The same as ``MultiVectorMultipleNegativesRankingLoss`` and ``MultiVectorDistillKLDivLoss`` of
    `sentence-transformers`.

    Args:
        encoder: trained but for its heads, with the layers that make vectors of states.
        ranking: the loss.
        skipped: ids of tokens of documents that have no vector, such as punctuation.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        ranking: RankingSpec,
        *,
        skipped: Sequence[int] = (),
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__(encoder, ranking, negatives=negatives, tokens_per_pass=tokens_per_pass)
        self.skipped = np.array(sorted(skipped), dtype=np.int64)

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each token, (T, E)."""
        return token_vectors(self.encoder.encode(batch), self.encoder.output, normalize=True)

    def losses(self, vectors: Tensor, example: RankingExample) -> tuple[dict[str, Tensor], Tensor]:
        """See `RankingObjective`."""
        groups = example.groups(vectors.device)
        offsets = example.batch.layout.offsets
        first = int(offsets[example.queries])
        queries = SequenceLayout(offsets[: example.queries + 1])
        kept_T = ~np.isin(example.batch.ids_T[first:], self.skipped)
        documents = kept_layout(SequenceLayout(offsets[example.queries :] - first), kept_T)
        query_AE = vectors[:first]
        document_ZE = vectors[first:][torch.from_numpy(kept_T).to(vectors.device)]
        if self.ranking.loss == "contrastive":
            scores_QP = late_scores(query_AE, queries, document_ZE, documents)
            loss = contrastive_loss(self.ranking.scale * scores_QP, groups)
            return {"ranking": loss}, positives_first(scores_QP, groups)
        own_P = own_late_scores(query_AE, queries, document_ZE, documents, example.query_of_P)
        loss, right = own_loss(own_P, example, groups, self.ranking)
        return {"ranking": loss}, right


def kept_layout(layout: SequenceLayout, kept_T: NDArray[np.bool_]) -> SequenceLayout:
    """The layout of the kept tokens alone; every sequence keeps at least one, such as a special token."""
    counts = np.concatenate(([0], np.cumsum(kept_T)))
    return SequenceLayout(counts[layout.offsets])


def late_scores(
    query_AE: Tensor,
    queries: SequenceLayout,
    document_ZE: Tensor,
    documents: SequenceLayout,
    *,
    tile: int = TILE,
) -> Tensor:
    """The score of each query and document, (Q, P), by tiles of documents.

    A tile's products are computed again in the backward pass, so that never more than one tile of them is in
    memory; a tile is one document at least.
    """
    tiles: list[Tensor] = []
    for first, last in _tiles(documents, max(1, tile // max(1, len(query_AE)))):
        rows = slice(int(documents.offsets[first]), int(documents.offsets[last]))
        lengths = documents.lengths[first:last].tolist()
        arguments = (query_AE, document_ZE[rows], queries, lengths)
        if torch.is_grad_enabled():
            tiles.append(checkpoint(_tile_scores, *arguments, use_reentrant=False))
        else:
            tiles.append(_tile_scores(*arguments))
    return torch.cat(tiles, dim=1)


def own_late_scores(
    query_AE: Tensor,
    queries: SequenceLayout,
    document_ZE: Tensor,
    documents: SequenceLayout,
    query_of_P: NDArray[np.int64],
) -> Tensor:
    """The score of each document and its own query, (P,)."""
    scores: list[Tensor] = []
    for query in range(queries.sequence_count):
        first, last = np.searchsorted(query_of_P, (query, query + 1)).tolist()
        rows = slice(int(documents.offsets[first]), int(documents.offsets[last]))
        scores.append(
            late_scores(
                query_AE[queries.rows(query)],
                SequenceLayout.of_lengths(queries.lengths[query : query + 1]),
                document_ZE[rows],
                SequenceLayout.of_lengths(documents.lengths[first:last]),
            )[0]
        )
    return torch.cat(scores)


def _tiles(layout: SequenceLayout, tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of sequences of at most so many tokens, or of one longer sequence."""
    first = 0
    for last in range(1, layout.sequence_count + 1):
        after = layout.offsets[min(last + 1, layout.sequence_count)]
        if last == layout.sequence_count or after - layout.offsets[first] > tokens:
            yield first, last
            first = last


def _tile_scores(
    query_AE: Tensor, document_ZE: Tensor, queries: SequenceLayout, lengths: list[int]
) -> Tensor:
    products = torch.split(query_AE @ document_ZE.T, lengths, dim=1)
    best_AP = torch.stack([product.max(dim=1).values for product in products], dim=1)
    lengths_Q = torch.from_numpy(queries.lengths).to(best_AP.device)
    return torch.segment_reduce(best_AP, "sum", lengths=lengths_Q)
