"""Contrastive training on pairs of texts: vectors of one class are alike, those of two classes are not.

Axes: P pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import embed
from unmask.spec import PooledVector
from unmask.text.batch import PackedBatch
from unmask.training.data.labeled import LabeledSequence
from unmask.training.objectives.interface import Example, LossOutput, Objective

TERM = "contrastive"
"""The term of the loss, by which its figure is named."""


@dataclass(frozen=True, eq=False)
class PairExample(Example):
    """A packed batch in which the two texts of each pair are neighbors."""

    targets_P: NDArray[np.float32]
    """The wanted cosine similarity of each pair."""


class ContrastiveObjective(Objective[LabeledSequence, PairExample]):
    """The mean squared error of cosine similarities of texts, as in SetFit (Tunstall et al. 2022).

    The same as ``CosineSimilarityLoss`` of `sentence-transformers`; a mean over the pairs of the global
    batch.

    Args:
        encoder: trained but for its heads.
        output: how states become the vector of a text.
    """

    def __init__(self, encoder: Encoder, output: PooledVector) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output

    def prepare(
        self, items: Sequence[LabeledSequence], draw: np.random.Generator, progress: float
    ) -> PairExample:
        """Pack the texts of all pairs; nothing is random here."""
        ids, types, marks = zip(*(sequence for item in items for sequence in item.sequences()), strict=True)
        batch = PackedBatch.of_ids(ids, types, marks if any(marks) else None)
        targets_P = np.stack([item.target for item in items])
        return PairExample({TERM: len(items)}, batch.layout.token_count, len(ids), batch, targets_P=targets_P)

    def forward(self, example: PairExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of squared errors, divided by the number of pairs in the global batch."""
        e_SE = embed(
            self.encoder.encode(example.batch), example.batch.layout, self.output, self.encoder.output
        )
        found_P = functional.cosine_similarity(e_SE[0::2], e_SE[1::2])
        wanted_P = torch.from_numpy(example.targets_P).to(found_P)
        loss = functional.mse_loss(found_P, wanted_P, reduction="sum")
        return LossOutput(loss / max(1, totals[TERM]), {f"{TERM}/loss": loss.detach()})
