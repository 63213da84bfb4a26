"""Training of retrievers with separate queries and documents: one vector per text, or token, or word weights.

One vector per token is late interaction (ColBERT, Khattab & Zaharia 2020), one weight per word of the
vocabulary a sparse retriever (SPLADE, Formal et al. 2021).

Axes: Q queries; P documents of all queries; A tokens of queries; Z tokens of documents; V words of the
vocabulary.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import StaticWeights, embed, token_vectors, word_weights
from unmask.encoder.hooks import HookPoint
from unmask.spec import PooledVector, SparseVector
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.retrieval_example import (
    TERM,
    RankingExample,
    encode_in_passes,
    prepared,
    ranges,
)
from unmask.training.objectives.retrieval_losses import (
    Groups,
    contrastive_loss,
    exact,
    other_directions,
    own_positives_first,
    own_similarities,
    positives_first,
    similarities,
    taught_loss,
)
from unmask.training.objectives.specs import RankingSpec, RegularizerSpec


class RankingObjective(Objective[RankedTexts, RankingExample]):
    """A loss on scores of queries and documents, which are encoded apart.

    The loss is a mean over the queries of the global batch; the documents of a micro-batch are the candidates
    of its queries. Figures: ``loss``, and as ``accuracy`` the share of queries that score their positive
    document above all that the loss compares it with.

    Args:
        encoder: trained but for its heads.
        ranking: the loss.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        ranking: RankingSpec,
        *,
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.ranking = ranking
        self.negatives = negatives
        self.tokens_per_pass = tokens_per_pass

    @abstractmethod
    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each sequence, (S, E), or of each token, (T, E), in float32 at least."""

    def trained_vectors(self, batch: PackedBatch) -> Tensor:
        """What `losses` gets of each sequence or token: `vectors`, or more than is used after training."""
        return self.vectors(batch)

    @abstractmethod
    def losses(self, vectors: Tensor, example: RankingExample) -> tuple[dict[str, Tensor], Tensor]:
        """Parts of the loss by name, each a sum over queries, and how many queries were right."""

    def prepare(
        self, items: Sequence[RankedTexts], draw: np.random.Generator, progress: float
    ) -> RankingExample:
        """Pack all texts; ``draw`` chooses negatives if there are more than are used."""
        return prepared(items, draw, self.negatives)

    def forward(self, example: RankingExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of the losses of queries, divided by the number of queries in the global batch."""
        vectors = encode_in_passes(self.trained_vectors, example.batch, self.tokens_per_pass)
        parts, right = self.losses(vectors, example)
        total = torch.stack(list(parts.values())).sum()
        sums = {"loss": total, **(parts if len(parts) > 1 else {}), "accuracy": right}
        return LossOutput(
            total / max(1, totals[TERM]), {f"{TERM}/{name}": value.detach() for name, value in sums.items()}
        )


def vector_loss(
    query_QE: Tensor, document_PE: Tensor, example: RankingExample, ranking: RankingSpec
) -> tuple[Tensor, Tensor]:
    """The loss of one vector per text, a sum over queries, and how many queries were right."""
    groups = example.groups(query_QE.device)
    if ranking.loss != "contrastive":
        own_P = own_similarities(query_QE, document_PE, groups, ranking.similarity)
        return own_loss(own_P, example, groups, ranking)
    scores_QP = similarities(query_QE, document_PE, ranking.similarity)
    others = other_directions(
        query_QE,
        document_PE,
        groups,
        directions=ranking.directions,
        similarity=ranking.similarity,
        scale=ranking.scale,
    )
    loss = contrastive_loss(ranking.scale * scores_QP, groups, others, joint=ranking.joint)
    return loss, positives_first(scores_QP, groups)


def own_loss(
    own_P: Tensor, example: RankingExample, groups: Groups, ranking: RankingSpec
) -> tuple[Tensor, Tensor]:
    """`taught_loss` of scores of each query's own documents, and how many queries were right."""
    loss = taught_loss(own_P, example.taught(own_P.device), groups, ranking)
    return loss, own_positives_first(own_P, groups)


class DenseObjective(RankingObjective):
    """Scores are similarities of vectors, at one width or at several (Matryoshka, Kusupati et al. 2022).

    With ``depths`` vectors of the first layers alone are trained, too (2D Matryoshka, Li et al. 2024): the
    loss is that of all layers plus the mean of those of the depths, each over all widths. States of a depth
    go through the final norm, as they do in a model of so many layers.

    The same as ``MultipleNegativesRankingLoss``, ``MarginMSELoss``, ``DistillKLDivLoss``, ``MatryoshkaLoss``
    and, for families without a final norm, ``AdaptiveLayerLoss`` of `sentence-transformers` at those depths
    and with ``kl_temperature=0``: the divergence between softmaxes over features, which the paper adds, is
    not computed, and depths are named, not drawn.

    Args:
        encoder: trained but for its heads.
        output: how states become the vector of a text.
        ranking: the loss.
        widths: the loss is a weighted sum over vectors cut to these widths, by their weights; None for the
            whole width.
        depths: numbers of first layers whose vectors are trained besides those of all layers.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        output: PooledVector,
        ranking: RankingSpec,
        *,
        widths: Mapping[int, float] | None = None,
        depths: Sequence[int] = (),
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__(encoder, ranking, negatives=negatives, tokens_per_pass=tokens_per_pass)
        self.output = output
        self.widths = dict(widths or {output.width(encoder.spec): 1.0})
        self.depths = tuple(depths)

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each sequence, (S, E)."""
        return self._pooled(self.encoder.encode(batch), batch)

    def trained_vectors(self, batch: PackedBatch) -> Tensor:
        """The vectors of each sequence by all layers and then by each depth, side by side."""
        states: dict[int, Tensor] = {}

        def keep(point: HookPoint, layer: int, tensor: Tensor) -> None:
            if point is HookPoint.LAYER and layer + 1 in self.depths:
                states[layer + 1] = tensor

        parts = [self._pooled(self.encoder.encode(batch, hook=keep if self.depths else None), batch)]
        parts += [self._pooled(self.encoder.finished(states[depth]), batch) for depth in self.depths]
        return torch.cat(parts, dim=1)

    def _pooled(self, x_TD: Tensor, batch: PackedBatch) -> Tensor:
        layers = self.encoder.output if self.output.projections else None
        return exact(embed(x_TD, batch.layout, self.output, layers))

    def losses(self, vectors: Tensor, example: RankingExample) -> tuple[dict[str, Tensor], Tensor]:
        """See `RankingObjective`; the queries that are right by all layers at the largest width count."""
        (whole, right), *others = (
            self._loss(part, example) for part in vectors.chunk(1 + len(self.depths), dim=1)
        )
        if not others:
            return {"ranking": whole}, right
        return {"ranking": whole, "depths": torch.stack([loss for loss, _ in others]).mean()}, right

    def _loss(self, vectors: Tensor, example: RankingExample) -> tuple[Tensor, Tensor]:
        query_QE, document_PE = vectors[: example.queries], vectors[example.queries :]
        losses = [
            (weight, vector_loss(query_QE[:, :width], document_PE[:, :width], example, self.ranking))
            for width, weight in sorted(self.widths.items())
        ]
        return torch.stack([weight * loss for weight, (loss, _) in losses]).sum(), losses[-1][1][1]


@dataclass(frozen=True, eq=False)
class SparseExample(RankingExample):
    """Packed texts; queries that a table weights are not among them."""

    regularizer_factor: float
    """The factor of both regularizers at this step, from 0 to 1."""
    words_Q: tuple[NDArray[np.int64], ...]
    """The words of each query, if a table weights them."""


class SparseObjective(RankingObjective):
    """Scores are dot products of weights of words, most of which become 0 by the FLOPS regularizer.

    The same as ``SpladeLoss`` of `sentence-transformers` with ``SpladeRegularizerWeightSchedulerCallback``.
    Figures besides those of every retriever: ``ranking``, ``query_regularizer`` and ``document_regularizer``,
    the parts of the loss.

    Args:
        encoder: with an MLM head, and with a table of weights if the output has static queries.
        output: how logits become weights.
        ranking: the loss.
        regularizer: the weights of the regularizers.
        steps: steps of the run, over which the regularizers' weights rise.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        output: SparseVector,
        ranking: RankingSpec,
        regularizer: RegularizerSpec,
        *,
        steps: int,
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__(encoder, ranking, negatives=negatives, tokens_per_pass=tokens_per_pass)
        self.output, self.regularizer, self.steps = output, regularizer, steps

    def prepare(
        self, items: Sequence[RankedTexts], draw: np.random.Generator, progress: float
    ) -> SparseExample:
        """See `RankingObjective`; ``progress`` determines the weights of the regularizers."""
        static = self.output.static_queries
        example = prepared(items, draw, self.negatives, queries=not static)
        return example.extended(
            SparseExample,
            regularizer_factor=self.regularizer.factor(round(progress * self.steps), self.steps),
            words_Q=tuple(item.query.ids for item in items) if static else (),
        )

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The weights of each sequence, (S, V). Logits of one sequence at a time are in memory, because they
        are computed again in the backward pass."""
        x_TD, layout = self.encoder.encode(batch), batch.layout
        parts: list[Tensor] = []
        for sequence in range(layout.sequence_count):
            x_ND = x_TD[layout.rows(sequence)]
            if torch.is_grad_enabled():
                parts.append(checkpoint(self._weights, x_ND, layout, use_reentrant=False))
            else:
                parts.append(self._weights(x_ND, layout))
        return torch.stack(parts)

    def _weights(self, x_ND: Tensor, layout: SequenceLayout) -> Tensor:
        return word_weights(x_ND, lambda x: self.encoder.logits("masked", x, layout), self.output)

    def static_vectors(self, words: Sequence[NDArray[np.int64]]) -> Tensor:
        """The weights of each query by the table: those of its words, each once, (Q, V)."""
        (table,) = (layer for layer in self.encoder.output if isinstance(layer, StaticWeights))
        weight_V = exact(table.weight)
        has_QV = weight_V.new_zeros((len(words), len(weight_V)))
        rows = np.repeat(np.arange(len(words)), [len(ids) for ids in words])
        places = (torch.from_numpy(indices).to(has_QV.device) for indices in (rows, np.concatenate(words)))
        has_QV[tuple(places)] = 1
        return has_QV * weight_V

    def losses(self, vectors: Tensor, example: RankingExample) -> tuple[dict[str, Tensor], Tensor]:
        """See `RankingObjective`. The regularizers of a micro-batch count as often as it has queries."""
        assert isinstance(example, SparseExample)
        document_PV = vectors[example.queries :]
        query_QV = self.static_vectors(example.words_Q) if example.words_Q else vectors[: example.queries]
        loss, right = vector_loss(query_QV, document_PV, example, self.ranking)
        parts = {"ranking": loss}
        factor = example.regularizer_factor * len(query_QV)
        for name, x, weight in (
            ("query_regularizer", query_QV, self.regularizer.query_weight),
            ("document_regularizer", document_PV, self.regularizer.document_weight),
        ):
            if weight:
                parts[name] = factor * weight * flops(x)
        return parts, right


def flops(x_SV: Tensor) -> Tensor:
    """The sum over words of their squared mean weight (Paria et al. 2020)."""
    return x_SV.mean(0).square().sum()


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
    for first, last in ranges(documents, max(1, tile // max(1, len(query_AE)))):
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


def _tile_scores(
    query_AE: Tensor, document_ZE: Tensor, queries: SequenceLayout, lengths: list[int]
) -> Tensor:
    products = torch.split(query_AE @ document_ZE.T, lengths, dim=1)
    best_AP = torch.stack([product.max(dim=1).values for product in products], dim=1)
    lengths_Q = torch.from_numpy(queries.lengths).to(best_AP.device)
    return torch.segment_reduce(best_AP, "sum", lengths=lengths_Q)
