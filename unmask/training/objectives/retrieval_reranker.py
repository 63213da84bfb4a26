"""Training of cross-encoders: a query and a document are read together and get one score.

Axes: P queries with one document each; Q queries.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.text.batch import PackedBatch
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.retrieval_example import (
    PAIRS,
    TERM,
    RankingExample,
    encode_in_passes,
    prepared,
)
from unmask.training.objectives.retrieval_losses import (
    exact,
    log_softmax_of_each,
    own_positives_first,
    taught_loss,
)
from unmask.training.objectives.specs import PairLoss, RankingSpec

POINTWISE: tuple[PairLoss, ...] = ("bce", "mse")
"""Losses that are a mean over pairs; the others are a mean over queries."""


class RerankerObjective(Objective[RankedTexts, RankingExample]):
    """Scores of a head for one number, as ``BinaryCrossEntropyLoss``, ``MSELoss``, ``ListNetLoss`` and
    ``MarginMSELoss`` of `sentence-transformers` train them.

    Figures: ``pairs/loss`` or ``retrieval/loss``, and as ``retrieval/accuracy`` the share of queries that
    score their positive document above their others.

    Args:
        encoder: with a classifier of texts for one number.
        loss: see `PairLoss`; ``list_net`` learns from relevance 1 and 0 where the data have no scores.
        pos_weight: ``bce``: the factor of the loss of positive documents.
        negatives: given negatives of each query that a step uses at most, drawn at random; None uses all.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self,
        encoder: Encoder,
        loss: PairLoss,
        *,
        pos_weight: float | None = None,
        negatives: int | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss = loss
        self.pos_weight = pos_weight
        self.negatives = negatives
        self.tokens_per_pass = tokens_per_pass

    def prepare(
        self, items: Sequence[RankedTexts], draw: np.random.Generator, progress: float
    ) -> RankingExample:
        """Pack all pairs; ``draw`` chooses negatives if there are more than are used."""
        return prepared(items, draw, self.negatives, together=True)

    def scores(self, batch: PackedBatch) -> Tensor:
        """The logit of each pair, (P, 1), in float32 at least."""
        return exact(self.encoder.logits("sequence", self.encoder.encode(batch), batch.layout))

    def forward(self, example: RankingExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of the losses, divided by the number of pairs or queries in the global batch."""
        scores_P = encode_in_passes(self.scores, example.batch, self.tokens_per_pass)[:, 0]
        groups = example.groups(scores_P.device)
        relevant_P = torch.zeros_like(scores_P)
        relevant_P[groups.positive_Q] = 1.0
        count, query_of_P = len(groups.positive_Q), groups.query_of_P
        match self.loss:
            case "bce":
                weight = None if self.pos_weight is None else scores_P.new_tensor(self.pos_weight)
                loss = functional.binary_cross_entropy_with_logits(
                    scores_P, relevant_P, pos_weight=weight, reduction="sum"
                )
            case "mse":
                teacher_P = example.taught(scores_P.device).to(scores_P)
                loss = functional.mse_loss(scores_P, teacher_P, reduction="sum")
            case "margin_mse":
                taught = RankingSpec("margin_mse")
                loss = taught_loss(scores_P, example.taught(scores_P.device), groups, taught)
            case "list_net":
                labels_P = relevant_P if example.scores_P is None else example.taught(scores_P.device)
                wanted_P = log_softmax_of_each(labels_P.to(scores_P), query_of_P, count).exp()
                loss = -(wanted_P * log_softmax_of_each(scores_P, query_of_P, count)).sum()
            case "softmax":
                loss = -(relevant_P * log_softmax_of_each(scores_P, query_of_P, count)).sum()
            case _:
                assert_never(self.loss)
        term = PAIRS if self.loss in POINTWISE else TERM
        right = own_positives_first(scores_P, groups)
        return LossOutput(
            loss / max(1, totals[term]),
            {f"{term}/loss": loss.detach(), f"{TERM}/accuracy": right.detach()},
        )
