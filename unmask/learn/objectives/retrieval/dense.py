"""Training of dense retrievers: one vector per text.

Axes: Q queries; P documents of all queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from unmask.learn.data.ranking import RankedTexts
from unmask.learn.objectives.interface import LossOutput, Objective
from unmask.learn.objectives.retrieval.example import TERM, RankingExample, prepared
from unmask.learn.objectives.retrieval.losses import (
    Groups,
    contrastive_loss,
    exact,
    other_directions,
    positives_first,
    similarities,
)
from unmask.learn.objectives.retrieval.passes import encode_in_passes
from unmask.learn.objectives.retrieval.spec import Direction, Similarity
from unmask.model.encoder import Encoder
from unmask.model.heads import embed
from unmask.model.spec import PooledVector
from unmask.text.batch import PackedBatch


@dataclass(frozen=True)
class Contrast:
    """The contrastive loss of dense vectors."""

    scale: float = 20.0
    """Similarities are multiplied by it; the inverse of the temperature."""
    similarity: Similarity = "cosine"
    directions: tuple[Direction, ...] = ("query_to_doc",)
    """Which similarities a positive pair competes with."""
    joint: bool = True
    """One softmax over all directions; False takes the mean of one loss for each."""

    def loss(self, query_QE: Tensor, document_PE: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """The sum of the loss over queries, and the similarities."""
        scores_QP = similarities(query_QE, document_PE, self.similarity)
        others = other_directions(
            query_QE,
            document_PE,
            groups,
            directions=self.directions,
            similarity=self.similarity,
            scale=self.scale,
        )
        return contrastive_loss(self.scale * scores_QP, groups, others, joint=self.joint), scores_QP


class DenseObjective(Objective[RankedTexts, RankingExample]):
    """Multiple negatives ranking (InfoNCE), at one width or at several (Matryoshka, Kusupati et al. 2022).

    The same as ``MultipleNegativesRankingLoss`` and ``MatryoshkaLoss`` of `sentence-transformers`: a mean
    over the queries of the global batch. The documents of a micro-batch are the candidates of its queries.

    Args:
        encoder: trained but for its heads.
        output: how states become the vector of a text.
        contrast: the loss.
        widths: the loss is a weighted sum over vectors of these first numbers; empty for the whole width.
        width_weights: the weight of each width; empty for 1 each.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        output: PooledVector,
        contrast: Contrast,
        *,
        widths: Sequence[int] = (),
        width_weights: Sequence[float] = (),
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output
        self.contrast = contrast
        whole = output.width(encoder.spec)
        self.widths = dict(zip(widths, width_weights or (1.0,) * len(widths), strict=True)) or {whole: 1.0}
        self.negatives = negatives
        self.tokens_per_pass = tokens_per_pass

    def prepare(
        self, items: Sequence[RankedTexts], draw: np.random.Generator, progress: float
    ) -> RankingExample:
        """Pack all texts; ``draw`` chooses negatives if there are more than are used."""
        return prepared(items, draw, self.negatives)

    def forward(self, example: RankingExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of the losses of queries, divided by the number of queries in the global batch."""
        vectors_SE = encode_in_passes(self.vectors, example.batch, self.tokens_per_pass)
        query_QE, document_PE = vectors_SE[: example.queries], vectors_SE[example.queries :]
        groups = example.groups(vectors_SE.device)
        total = vectors_SE.new_zeros(())
        widest = None
        for width, weight in sorted(self.widths.items()):
            loss, widest = self.contrast.loss(query_QE[:, :width], document_PE[:, :width], groups)
            total = total + weight * loss
        assert widest is not None
        sums = {"loss": total, "accuracy": positives_first(widest, groups)}
        return LossOutput(
            total / max(1, totals[TERM]), {f"{TERM}/{name}": one.detach() for name, one in sums.items()}
        )

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each sequence, (S, E)."""
        return exact(embed(self.encoder.encode(batch), batch.layout, self.output))

    def encoders(self) -> Mapping[str, Encoder]:
        """The one encoder."""
        return {"": self.encoder}
