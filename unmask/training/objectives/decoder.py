"""Masked language modeling through the enhanced mask decoder (He et al. 2021)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from unmask.encoder.decoder import decode, why_no_decoder
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.training.data.batches import Chunk
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.masked import MaskedExample, masked_example, words_loss, wrap
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.vocabulary import Vocabulary


class EnhancedMaskedLanguageModel(Objective[Chunk, MaskedExample]):
    """Predict masked tokens from states with absolute positions: mean cross-entropy, in nats.

    The encoder's last layer runs only in the decoder, on queries of the selected tokens; see
    `unmask.encoder.decoder`. Term: ``masked`` (``masked/loss``, ``masked/accuracy``).

    Raises:
        InvalidRequest: the encoder has no decoder; its head must be ``MaskedLM(enhanced=True)`` and its
            positions ``LearnedPositions(added=False)``.
    """

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary, masking: MaskingSpec) -> None:
        super().__init__()
        reason = why_no_decoder(encoder.spec)
        if reason is not None:
            raise InvalidRequest(
                f"the encoder cannot learn through an enhanced mask decoder, because {reason}; "
                "in a run file set enhanced_mask_decoder = true in model.config, or leave legacy out for "
                "a plain MLM head"
            )
        self.encoder = encoder
        self.vocabulary = vocabulary
        self.masking = masking

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> MaskedExample:
        """Make [CLS] chunk [SEP] of each chunk, and mask tokens."""
        return masked_example(wrap(chunks, self.vocabulary), self.vocabulary, self.masking, draw, progress)

    def forward(self, example: MaskedExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum over selected tokens, divided by their number in the global batch."""
        batch = example.batch
        ids_T, segments_T, chosen_M = (
            torch.from_numpy(array).to(self.encoder.device)
            for array in (batch.ids_T, batch.token_type_ids_T, example.chosen_M)
        )
        x_MD = decode(self.encoder, ids_T, batch.layout, segments_T, selected_M=chosen_M)
        loss, right = words_loss(self.encoder, "enhanced", x_MD, example.targets_M)
        return LossOutput(
            loss / totals["masked"], {"masked/loss": loss.detach(), "masked/accuracy": right.detach()}
        )
