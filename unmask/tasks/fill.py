"""Predict the words behind a text's mask tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.model.decoder import decode, why_no_decoder
from unmask.model.encoder import Encoder
from unmask.model.spec.global_tokens import GlobalTokens, pack
from unmask.text import Encoding, PackedBatch, Tokenizer


@dataclass(frozen=True)
class Prediction:
    """One word that could stand behind a mask."""

    piece: str
    """The vocabulary's spelling."""
    text: str
    """What it stands for in a text."""
    id: int
    probability: float
    """Over the whole vocabulary."""


@dataclass(frozen=True)
class FilledMask:
    """One mask token of a text and what the model would put there, likeliest first."""

    token: int
    """Its position among the tokens."""
    start: int
    """Its first character in the text."""
    end: int
    """The character after it."""
    predictions: tuple[Prediction, ...]


def fill(
    encoder: Encoder,
    tokenizer: Tokenizer,
    encoding: Encoding,
    *,
    top_k: int = 5,
    global_tokens: GlobalTokens = "none",
    name: str = "the model",
) -> tuple[FilledMask, ...]:
    """Predictions for every mask token of the text, each as if the others stayed masked.

    ``global_tokens`` says which tokens are global in an encoder that has a use for such.
    A DeBERTa whose predictor was trained on an enhanced mask decoder predicts through it.
    Logits are computed for masked tokens alone; probabilities in float32 (float64 for a float64 model).

    Raises:
        InvalidRequest: the encoder has no head that predicts words, the tokenizer no mask token, or the
            text none of them; or ``top_k`` is out of range.
        NonFiniteResult: a probability is not finite.
    """
    role = next((role for role in ("masked", "enhanced") if role in encoder.heads), None)
    if role is None:
        has = ", ".join(encoder.heads) or "none"
        raise InvalidRequest(
            f"{name} cannot predict masked words: its checkpoint holds no masked-LM head (heads: {has}); "
            "take a checkpoint that was saved with one"
        )
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise InvalidRequest(f"the tokenizer of {name} has no mask token, so no word can be asked for")
    if not 1 <= top_k <= encoder.spec.embedding.vocabulary:
        raise InvalidRequest(f"top_k is {top_k}; it can be 1 to {encoder.spec.embedding.vocabulary}")
    masked = [token for token, id in enumerate(encoding.ids.tolist()) if id == mask_id]
    if not masked:
        raise InvalidRequest(
            f"the text has no {tokenizer.engine.id_to_token(mask_id)}; "
            "write it where a word is to be predicted"
        )
    batch = pack(encoder.spec, [encoding], global_tokens)
    with torch.inference_mode():
        logits_MV = encoder.logits(role, _states(encoder, role, batch, masked), batch.layout)
        exact = torch.promote_types(logits_MV.dtype, torch.float32)
        best = logits_MV.to(exact).softmax(-1).topk(top_k)
    if not torch.isfinite(best.values).all():
        raise NonFiniteResult("a predicted probability is not finite; try a wider dtype")
    return tuple(
        FilledMask(
            token=token,
            start=int(encoding.spans[token, 0]),
            end=int(encoding.spans[token, 1]),
            predictions=tuple(
                Prediction(*_spellings(tokenizer, id), id, probability)
                for id, probability in zip(ids, probabilities, strict=True)
            ),
        )
        for token, ids, probabilities in zip(masked, best.indices.tolist(), best.values.tolist(), strict=True)
    )


def _states(encoder: Encoder, role: str, batch: PackedBatch, masked: list[int]) -> Tensor:
    """What the head of that role reads, for masked tokens."""
    if role == "masked" or why_no_decoder(encoder.spec) is not None:
        return encoder.encode(batch)[masked]
    ids_T, segments_T, selected_M = (
        torch.from_numpy(array).to(encoder.device)
        for array in (batch.ids_T, batch.segments_T, np.array(masked))
    )
    return decode(encoder, ids_T, batch.layout, segments_T, selected_M=selected_M)


def _spellings(tokenizer: Tokenizer, id: int) -> tuple[str, str]:
    """A piece as the vocabulary spells it, and as it reads; an id without a piece is shown as a number."""
    piece: str | None = tokenizer.engine.id_to_token(id)
    if piece is None:
        return f"<{id}>", f"<{id}>"
    return piece, tokenizer.engine.decode([id], skip_special_tokens=False)
