"""Predict the words behind a text's mask tokens."""

from dataclasses import dataclass

import torch

from unmask.errors import InvalidRequest, not_finite
from unmask.model.decoder import word_role, word_states
from unmask.model.encoder import Encoder
from unmask.model.spec.global_tokens import GlobalTokens, pack
from unmask.text import Encoding, Tokenizer
from unmask.text.masking import spellings


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
    role = word_role(encoder, name)
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
        logits_MV = encoder.logits(role, word_states(encoder, role, batch, masked), batch.layout)
        exact = torch.promote_types(logits_MV.dtype, torch.float32)
        best = logits_MV.to(exact).softmax(-1).topk(top_k)
    if not torch.isfinite(best.values).all():
        raise not_finite("a predicted probability", str(logits_MV.dtype))
    return tuple(
        FilledMask(
            token=token,
            start=int(encoding.spans[token, 0]),
            end=int(encoding.spans[token, 1]),
            predictions=tuple(
                Prediction(*spellings(tokenizer, id), id, probability)
                for id, probability in zip(ids, probabilities, strict=True)
            ),
        )
        for token, ids, probabilities in zip(masked, best.indices.tolist(), best.values.tolist(), strict=True)
    )
