"""Predict the words at a text's mask tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest
from unmask.spec.encoder import masked_lm_role
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.text import Encoding, Tokenizer
from unmask.text.masking import spellings
from unmask.text.tokenizer import numbered


@dataclass(frozen=True)
class Prediction:
    """One candidate word for a mask."""

    piece: str
    """The vocabulary's spelling."""
    text: str
    """The text that it stands for."""
    id: int
    probability: float
    """Its probability over the whole vocabulary."""


@dataclass(frozen=True)
class FilledMask:
    """One mask token of a text and the model's predictions for it, most probable first."""

    token: int
    """Its position among the tokens."""
    start: int
    """The offset of its first character in the text."""
    end: int
    """The offset after its last character."""
    predictions: tuple[Prediction, ...]


def fill(
    engine: Engine,
    tokenizer: Tokenizer,
    encodings: Sequence[Encoding],
    *,
    top_k: int = 5,
    global_tokens: GlobalTokens = "none",
    tokens_per_pass: int = TOKENS_PER_PASS,
    model: str = "the model",
    name: Callable[[int], str] = numbered,
) -> list[tuple[FilledMask, ...]]:
    """For each text, predictions for every mask token, each with the others still masked.

    ``global_tokens`` selects the global tokens in an encoder with global attention.
    A DeBERTa whose masked-LM head was trained on an enhanced mask decoder predicts through it.
    Logits are computed only for masked tokens, probabilities in float32 (float64 for a float64 model).

    Raises:
        InvalidRequest: the encoder has no masked-LM head, the tokenizer has no mask token, a text
            contains no mask token, or ``top_k`` is out of range.
        NonFiniteResult: a probability is not finite.
    """
    import torch

    role = masked_lm_role(engine.spec, model)
    top_k = whole_number("top_k", top_k, 1, engine.spec.embedding.vocabulary)
    masks = mask_positions(tokenizer, encodings, model, name)
    found: list[tuple[FilledMask, ...]] = [()] * len(encodings)
    for chosen, batch in text_batches(engine.spec, encodings, global_tokens, tokens_per_pass):
        starts = batch.layout.offsets[:-1]
        rows_M = np.concatenate([masks[i] + start for i, start in zip(chosen, starts, strict=True)])
        logits_MV = torch.from_numpy(engine.logits(batch, role, rows_M))
        ids = logits_MV.topk(top_k).indices  # of probabilities many can be equal
        p_MK, ids_MK = logits_MV.softmax(-1).gather(-1, ids).numpy(), ids.numpy()
        of_M = batch.layout.sequence_of_T[rows_M]
        require_finite(p_MK, chosen, of_M, "a predicted probability", name=name, dtype=engine.dtype)
        for place, index in enumerate(chosen):
            found[index] = tuple(
                _filled(tokenizer, encodings[index], token, p_K.tolist(), ids_K.tolist())
                for token, p_K, ids_K in zip(
                    masks[index].tolist(), p_MK[of_M == place], ids_MK[of_M == place], strict=True
                )
            )
    return found


def mask_positions(
    tokenizer: Tokenizer, encodings: Sequence[Encoding], model: str, name: Callable[[int], str]
) -> list[NDArray[np.int64]]:
    """The positions of each text's mask tokens.

    Raises:
        InvalidRequest: a text has none, or the tokenizer has no mask token.
    """
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise InvalidRequest(f"the tokenizer of {model} has no mask token, so no word can be asked for")
    masks = [np.flatnonzero(encoding.ids == mask_id) for encoding in encodings]
    for index, places in enumerate(masks):
        if not len(places):
            raise InvalidRequest(
                f"{name(index)} has no {tokenizer.engine.id_to_token(mask_id)}; "
                "write it where a word is to be predicted"
            )
    return masks


def _filled(
    tokenizer: Tokenizer, encoding: Encoding, token: int, probabilities: list[float], ids: list[int]
) -> FilledMask:
    return FilledMask(
        token=token,
        start=int(encoding.offsets[token, 0]),
        end=int(encoding.offsets[token, 1]),
        predictions=tuple(
            Prediction(*spellings(tokenizer, id), id, probability)
            for id, probability in zip(ids, probabilities, strict=True)
        ),
    )
