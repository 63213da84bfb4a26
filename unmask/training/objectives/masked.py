"""Masked language modeling (Devlin et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.errors import InvalidRequest
from unmask.text.batch import PackedBatch
from unmask.training.data.batches import Chunk
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.objectives.masking import MaskingSpec, mask_tokens
from unmask.training.objectives.prediction import selected_cross_entropy
from unmask.training.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class MaskedExample(Example):
    """Texts with masked tokens, and the original tokens."""

    chosen_M: NDArray[np.int64]
    """Indices of the selected tokens in the batch."""
    targets_M: NDArray[np.int64]
    """Original ids of the selected tokens."""


class MaskedLanguageModel(Objective[Chunk, MaskedExample]):
    """Predict masked tokens from the rest: mean cross-entropy over the selected tokens, in nats.

    Term: ``masked`` (``masked/loss``, ``masked/accuracy``).
    """

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary, masking: MaskingSpec) -> None:
        super().__init__()
        require_masked_head(encoder)
        self.encoder = encoder
        self.vocabulary = vocabulary
        self.masking = masking

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> MaskedExample:
        """Make [CLS] chunk [SEP] of each chunk, and mask tokens."""
        return masked_example(wrap(chunks, self.vocabulary), self.vocabulary, self.masking, draw, progress)

    def forward(self, example: MaskedExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum over selected tokens, divided by their number in the global batch."""
        x_TD = self.encoder.encode(example.batch)
        loss, right = masked_loss(self.encoder, x_TD, example)
        return LossOutput(
            loss / totals["masked"], {"masked/loss": loss.detach(), "masked/accuracy": right.detach()}
        )


def wrap(chunks: Sequence[Chunk], vocabulary: Vocabulary) -> PackedBatch:
    """[CLS] chunk [SEP] for each chunk, packed."""
    return PackedBatch.of_ids(
        [np.concatenate(([vocabulary.cls_id], chunk.ids, [vocabulary.sep_id])) for chunk in chunks]
    )


def masked_example(
    batch: PackedBatch,
    vocabulary: Vocabulary,
    masking: MaskingSpec,
    draw: np.random.Generator,
    progress: float,
) -> MaskedExample:
    """Mask tokens of the batch; see `mask_tokens`."""
    hidden_T, chosen_M = mask_tokens(
        batch.ids_T, batch.layout, masking, vocabulary, draw=draw, progress=progress
    )
    return MaskedExample(
        counts={"masked": len(chosen_M)},
        tokens=len(hidden_T),
        sequences=batch.layout.sequence_count,
        batch=PackedBatch(hidden_T, batch.token_type_ids_T, batch.layout),
        chosen_M=chosen_M,
        targets_M=batch.ids_T[chosen_M],
        predicted=len(chosen_M),
    )


def masked_loss(encoder: Encoder, x_TD: Tensor, example: MaskedExample) -> tuple[Tensor, Tensor]:
    """Sum of cross-entropies over the selected tokens, and the number predicted correctly.

    Logits are computed only for the selected tokens.
    """
    chosen_M = torch.from_numpy(example.chosen_M).to(x_TD.device)
    return words_loss(encoder, "masked", x_TD[chosen_M], example.targets_M)


def words_loss(
    encoder: Encoder, role: str, x_MD: Tensor, targets_M: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Like `masked_loss`, with the head of that role on states of the selected tokens, shape (M, D)."""
    head = encoder.heads[role]
    assert isinstance(head, MaskedLMHead)
    state_ME, matrix_VE, bias_V = head.factors(x_MD, encoder.embedding.words.weight)
    return selected_cross_entropy(state_ME, matrix_VE, bias_V, torch.from_numpy(targets_M).to(x_MD.device))


def require_masked_head(encoder: Encoder) -> None:
    """Raise if the encoder has no MLM head."""
    if "masked" not in encoder.heads:
        has = ", ".join(encoder.heads) or "none"
        raise InvalidRequest(
            f"the encoder has no head that predicts masked words (heads: {has}); give its spec a MaskedLM"
        )
