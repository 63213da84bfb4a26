"""What the objectives of retrievers with separate queries and documents share.

Axes: Q queries; P documents of all queries.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.text.batch import PackedBatch
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.retrieval_example import TERM, RankingExample, encode_in_passes, prepared
from unmask.training.objectives.retrieval_losses import (
    Groups,
    contrastive_loss,
    other_directions,
    own_positives_first,
    own_similarities,
    positives_first,
    similarities,
    taught_loss,
)
from unmask.training.objectives.specs import RankingSpec


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
        vectors = encode_in_passes(self.vectors, example.batch, self.tokens_per_pass)
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
