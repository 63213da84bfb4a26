"""Training of sparse retrievers: one weight per word of the vocabulary (SPLADE, Formal et al. 2021).

Axes: Q queries; P documents of all queries; V words of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import StaticWeights, word_weights
from unmask.spec import SparseVector
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives.retrieval_example import RankingExample, prepared
from unmask.training.objectives.retrieval_losses import exact
from unmask.training.objectives.retrieval_ranking import RankingObjective, vector_loss
from unmask.training.objectives.specs import RankingSpec, RegularizerSpec


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
        return SparseExample(
            **{field.name: getattr(example, field.name) for field in fields(example)},
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
