"""Distillation of embeddings: a student's vectors learn to be its teacher's (Vujanic & Rueckstiess 2025).

Axes: Q teacher's vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import embed
from unmask.spec import PooledVector
from unmask.text.batch import PackedBatch
from unmask.training.data.labeled import LabeledSequence
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.objectives.retrieval_example import encode_in_passes
from unmask.training.objectives.retrieval_losses import exact
from unmask.training.objectives.specs import VectorLoss

TERM = "distillation"
"""The term of the loss, by which its figures are named."""


@dataclass(frozen=True, eq=False)
class VectorExample(Example):
    """Packed texts with their teacher's vectors."""

    taught_QE: NDArray[np.float32]
    """The teacher's vector of each text."""


class VectorDistillation(Objective[LabeledSequence, VectorExample]):
    """The distance of each text's vector from its teacher's, as ``EmbedDistillLoss`` of
    `sentence-transformers`; a mean over the texts of the global batch.

    Figures: ``distillation/loss``, and as ``distillation/cosine`` the cosine of both vectors.

    Args:
        encoder: trained but for its heads, with the layers after pooling.
        output: how states become the vector of a text; as wide as the teacher's.
        loss: the distance.
        tokens_per_pass: encode the batch in passes of so many tokens; the gradient is the same.
    """

    def __init__(
        self, encoder: Encoder, output: PooledVector, loss: VectorLoss, *, tokens_per_pass: int | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output
        self.loss = loss
        self.tokens_per_pass = tokens_per_pass

    def prepare(
        self, items: Sequence[LabeledSequence], draw: np.random.Generator, progress: float
    ) -> VectorExample:
        """Pack all texts; nothing is random here."""
        marks = [item.global_tokens for item in items]
        batch = PackedBatch.of_ids(
            [item.ids for item in items],
            [item.token_type_ids for item in items],
            marks if any(marks) else None,
        )
        taught_QE = np.stack([np.asarray(item.target, dtype=np.float32) for item in items])
        counts = {TERM: len(items)}
        return VectorExample(counts, batch.layout.token_count, len(items), batch, taught_QE=taught_QE)

    def vectors(self, batch: PackedBatch) -> Tensor:
        """The vector of each sequence, (S, E), in float32 at least."""
        layers = self.encoder.output if self.output.projections else None
        return exact(embed(self.encoder.encode(batch), batch.layout, self.output, layers))

    def forward(self, example: VectorExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of distances, divided by the number of texts in the global batch."""
        found_QE = encode_in_passes(self.vectors, example.batch, self.tokens_per_pass)
        taught_QE = torch.from_numpy(example.taught_QE).to(found_QE)
        cosine_Q = functional.cosine_similarity(found_QE, taught_QE)
        match self.loss:
            case "l2":
                loss = torch.linalg.vector_norm(found_QE - taught_QE, dim=-1).sum()
            case "mse":
                loss = functional.mse_loss(found_QE, taught_QE, reduction="none").mean(-1).sum()
            case "cosine":
                loss = (1 - cosine_Q).sum()
            case _:
                assert_never(self.loss)
        sums = {"loss": loss, "cosine": cosine_Q.sum()}
        return LossOutput(
            loss / max(1, totals[TERM]), {f"{TERM}/{name}": value.detach() for name, value in sums.items()}
        )
