"""Causal language modeling: predict the next token (Radford et al. 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.training.data.batches import Chunk
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.masked import MaskedExample, require_masked_head, words_loss, wrap
from unmask.training.vocabulary import Vocabulary


@dataclass(frozen=True)
class CausalSpec:
    """The objective has no settings."""


class CausalLanguageModel(Objective[Chunk, MaskedExample]):
    """Predict every token of a text from those before it: mean cross-entropy, in nats.

    Special tokens are read, but not predicted. The head is the one that predicts masked words in an encoder
    that reads in both directions; here its logits at a token are those of the next one.

    Term: ``causal`` (``causal/loss``, ``causal/accuracy``).
    """

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary) -> None:
        super().__init__()
        require_masked_head(encoder)
        if not encoder.spec.causal:
            raise InvalidRequest(
                "the objective causal predicts the next token, which this encoder attends to; give it causal "
                "attention, such as is_decoder = true in model.config"
            )
        self.encoder = encoder
        self.vocabulary = vocabulary

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> MaskedExample:
        """Make [CLS] chunk [SEP] of each chunk; the chosen tokens are those before the predicted ones."""
        batch = wrap(chunks, self.vocabulary)
        predicted_T = ~self.vocabulary.special_V[batch.ids_T]
        predicted_T[batch.layout.offsets[:-1]] = False
        targets_M = np.flatnonzero(predicted_T)
        if not len(targets_M):
            raise InvalidRequest("a batch holds only special tokens, and none of them is predicted")
        return MaskedExample(
            counts={"causal": len(targets_M)},
            tokens=len(batch.ids_T),
            sequences=batch.layout.sequence_count,
            batch=batch,
            chosen_M=targets_M - 1,
            targets_M=batch.ids_T[targets_M],
            predicted=len(targets_M),
        )

    def forward(self, example: MaskedExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum over predicted tokens, divided by their number in the global batch."""
        x_TD = self.encoder.encode(example.batch)
        chosen_M = torch.from_numpy(example.chosen_M).to(x_TD.device)
        loss, right = words_loss(self.encoder, "masked", x_TD[chosen_M], example.targets_M)
        return LossOutput(
            loss / totals["causal"], {"causal/loss": loss.detach(), "causal/accuracy": right.detach()}
        )
