"""Masked and causal language modeling: predict hidden tokens, or the next one.

Masked (Devlin et al. 2019), also through the enhanced mask decoder (He et al. 2021); causal (Radford et al.
2018). Cross-entropy over the vocabulary has only a few rows of logits in memory at a time.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmask.encoder.decoder import decode
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.errors import InvalidRequest
from unmask.kernels.products import linear, outer
from unmask.spec.encoder import why_no_decoder
from unmask.text.batch import PackedBatch
from unmask.training.data.stream import Chunk
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.objectives.masking import MaskingSpec, mask_tokens
from unmask.training.table import settings
from unmask.training.vocabulary import Vocabulary

LOGITS_AT_ONCE = 1 << 21
"""Elements that fit a core's share of the cache in float32. On a GPU the matrix products decide, see
`_rows`."""


def selected_cross_entropy(
    x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum of ``-log softmax(x words^T + bias)[target]`` over tokens, in nats, and the number correct.

    Exact; the gradient is computed in the forward pass, a few rows of logits at a time, so that the (M, V)
    logits and their softmax are never held (the idea of Hsu et al. 2024, "Liger Kernel"). Logits are products
    in the type of ``x_ME`` (of autocast, where it is on), probabilities and sums in float32 or better.

    Args:
        x_ME: states that predict, shape (M, E).
        words_VE: a vector per word, shape (V, E).
        bias_V: a number per word, or None.
        targets_M: the correct word's id for each.

    Returns:
        Two scalars: the sum (differentiable once) and the number of targets with the largest logit.
    """
    kind = x_ME.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _run(x_ME.to(dtype), words_VE, bias_V, targets_M)
    return _run(x_ME, words_VE, bias_V, targets_M)


def _run(x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor) -> tuple[Tensor, Tensor]:
    loss, right = _CrossEntropy.apply(x_ME, words_VE, bias_V, targets_M)  # type: ignore[no-untyped-call]
    return loss, right


def _rows(vocabulary: int, device: torch.device) -> int:
    return max(1, (LOGITS_AT_ONCE if device.type == "cpu" else 64 * LOGITS_AT_ONCE) // vocabulary)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(x_ME.dtype, torch.float32)
        matrix_VE = words_VE.detach().to(x_ME.dtype)
        bias = None if bias_V is None else bias_V.detach().to(exact)
        need_x, need_words, need_bias, _ = ctx.needs_input_grad
        dx_ME = torch.empty_like(x_ME) if need_x else None
        dwords_VE = torch.zeros_like(matrix_VE, dtype=exact) if need_words else None
        dbias_V = torch.zeros_like(bias_V, dtype=exact) if need_bias and bias_V is not None else None
        loss = torch.zeros((), dtype=exact, device=x_ME.device)
        right = torch.zeros((), dtype=torch.int64, device=x_ME.device)
        step = _rows(len(words_VE), x_ME.device)
        for first in range(0, len(x_ME), step):
            rows = slice(first, first + step)
            x_RE, target_R1 = x_ME[rows], targets_M[rows, None]
            logits_RV = linear(x_RE, matrix_VE).to(exact)
            if bias is not None:
                logits_RV += bias
            word_R1 = logits_RV.argmax(-1, keepdim=True)
            loss += (torch.logsumexp(logits_RV, -1, keepdim=True) - logits_RV.gather(1, target_R1)).sum()
            right += (word_R1 == target_R1).sum()
            if dx_ME is None and dwords_VE is None and dbias_V is None:
                continue
            p_RV = torch.softmax(logits_RV, -1)
            p_RV.scatter_add_(1, target_R1, torch.full_like(target_R1, -1, dtype=exact))
            if dbias_V is not None:
                dbias_V += p_RV.sum(0)
            g_RV = p_RV.to(x_ME.dtype)
            if dx_ME is not None:
                dx_ME[rows] = linear(g_RV, matrix_VE.t())
            if dwords_VE is not None:
                dwords_VE += outer(g_RV, x_RE)
        ctx.save_for_backward(
            dx_ME,
            None if dwords_VE is None else dwords_VE.to(words_VE.dtype),
            None if dbias_V is None or bias_V is None else dbias_V.to(bias_V.dtype),
        )
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors
        return *(None if tensor is None else tensor * grad.to(tensor.dtype) for tensor in saved_tensors), None


@dataclass(frozen=True, eq=False)
class MaskedExample(Example):
    """Texts with masked tokens, and the original tokens."""

    chosen_M: NDArray[np.int64]
    """Indices of the selected tokens in the batch."""
    targets_M: NDArray[np.int64]
    """Original ids of the selected tokens."""


class TokenObjective(Objective[Chunk, MaskedExample]):
    """Predict some tokens of each text: mean cross-entropy over them, in nats.

    Term: ``masked`` (``masked/loss``, ``masked/accuracy``), or `term`.
    """

    term = "masked"

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.check(encoder)
        self.encoder = encoder
        self.vocabulary = vocabulary

    @abstractmethod
    def check(self, encoder: Encoder) -> None:
        """Raise `InvalidRequest` unless the encoder can learn it."""

    @abstractmethod
    def predicted(self, example: MaskedExample) -> tuple[Tensor, Tensor]:
        """Sum of cross-entropies over the selected tokens, and the number predicted correctly."""

    def forward(self, example: MaskedExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum over selected tokens, divided by their number in the global batch."""
        loss, right = self.predicted(example)
        figures = {f"{self.term}/loss": loss.detach(), f"{self.term}/accuracy": right.detach()}
        return LossOutput(loss / totals[self.term], figures)


class MaskedObjective(TokenObjective):
    """Predict masked tokens."""

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary, masking: MaskingSpec) -> None:
        super().__init__(encoder, vocabulary)
        self.masking = masking

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> MaskedExample:
        """Make [CLS] chunk [SEP] of each chunk, and mask tokens."""
        return masked_example(wrap(chunks, self.vocabulary), self.vocabulary, self.masking, draw, progress)


class MaskedLanguageModel(MaskedObjective):
    """From the rest of the text."""

    def check(self, encoder: Encoder) -> None:
        """See `require_masked_head`."""
        require_masked_head(encoder)

    def predicted(self, example: MaskedExample) -> tuple[Tensor, Tensor]:
        """From the last hidden states."""
        return masked_loss(self.encoder, self.encoder.encode(example.batch), example)


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


class EnhancedMaskedLanguageModel(MaskedObjective):
    """From states with absolute positions.

    The encoder's last layer runs only in the decoder, on queries of the selected tokens; see
    `unmask.encoder.decoder`.

    Raises:
        InvalidRequest: the encoder has no decoder; its head must be ``MaskedLM(enhanced=True)`` and its
            positions ``LearnedPositions(added=False)``.
    """

    def check(self, encoder: Encoder) -> None:
        """It must have the decoder."""
        reason = why_no_decoder(encoder.spec)
        if reason is not None:
            raise InvalidRequest(
                f"the encoder cannot learn through an enhanced mask decoder, because {reason}; "
                "in a run file set enhanced_mask_decoder = true in model.config, or leave legacy out for "
                "a plain MLM head"
            )

    def predicted(self, example: MaskedExample) -> tuple[Tensor, Tensor]:
        """From the decoder's states of the selected tokens."""
        batch = example.batch
        ids_T, segments_T, chosen_M = (
            torch.from_numpy(array).to(self.encoder.device)
            for array in (batch.ids_T, batch.token_type_ids_T, example.chosen_M)
        )
        x_MD = decode(self.encoder, ids_T, batch.layout, segments_T, selected_M=chosen_M)
        return words_loss(self.encoder, "enhanced", x_MD, example.targets_M)


@settings
class CausalSpec:
    """The objective has no settings."""


class CausalLanguageModel(TokenObjective):
    """Predict every token of a text from those before it: mean cross-entropy, in nats.

    Special tokens are read, but not predicted. The head is the one that predicts masked words in an encoder
    that reads in both directions; here its logits at a token are those of the next one.

    Term: ``causal`` (``causal/loss``, ``causal/accuracy``).
    """

    term = "causal"

    def check(self, encoder: Encoder) -> None:
        """It must have a head over the vocabulary and attend to no later token."""
        require_masked_head(encoder)
        if not encoder.spec.causal:
            raise InvalidRequest(
                "the objective causal predicts the next token, which this encoder attends to; give it causal "
                "attention, such as is_decoder = true in model.config"
            )

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

    def predicted(self, example: MaskedExample) -> tuple[Tensor, Tensor]:
        """From the last hidden states."""
        return masked_loss(self.encoder, self.encoder.encode(example.batch), example)
