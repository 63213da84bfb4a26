"""Training of dense retrievers: one vector per text.

Axes: Q queries; P documents of all queries.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import embed
from unmask.spec import PooledVector
from unmask.text.batch import PackedBatch
from unmask.training.objectives.retrieval_example import RankingExample
from unmask.training.objectives.retrieval_losses import exact
from unmask.training.objectives.retrieval_ranking import RankingObjective, vector_loss
from unmask.training.objectives.specs import RankingSpec


class DenseObjective(RankingObjective):
    """Scores are similarities of vectors, at one width or at several (Matryoshka, Kusupati et al. 2022).

    The same as ``MultipleNegativesRankingLoss``, ``MarginMSELoss``, ``DistillKLDivLoss`` and
    ``MatryoshkaLoss`` of `sentence-transformers`.

    Args:
        encoder: trained but for its heads.
        output: how states become the vector of a text.
        ranking: the loss.
        widths: the loss is a weighted sum over vectors cut to these widths, by their weights; None for the
            whole width.
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
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__(encoder, ranking, negatives=negatives, tokens_per_pass=tokens_per_pass)
        self.output = output
        self.widths = dict(widths or {output.width(encoder.spec): 1.0})

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each sequence, (S, E)."""
        layers = self.encoder.output if self.output.projections else None
        return exact(embed(self.encoder.encode(batch), batch.layout, self.output, layers))

    def losses(self, vectors: Tensor, example: RankingExample) -> tuple[dict[str, Tensor], Tensor]:
        """See `RankingObjective`; the queries that are right at the largest width count."""
        query_QE, document_PE = vectors[: example.queries], vectors[example.queries :]
        losses = [
            (weight, vector_loss(query_QE[:, :width], document_PE[:, :width], example, self.ranking))
            for width, weight in sorted(self.widths.items())
        ]
        total = torch.stack([weight * loss for weight, (loss, _) in losses]).sum()
        return {"ranking": total}, losses[-1][1][1]
