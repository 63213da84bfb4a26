"""Predict the words at a text's mask tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest
from unmask.spec.encoder import masked_lm_role
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.reader import Name, Reader, Ready, called
from unmask.text import Encoding, Tokenizer, Truncation
from unmask.text.tokenizer import numbered, spellings

Ids = NDArray[np.int64]


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


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    *,
    top_k: int = 5,
    truncation: Truncation = "error",
    global_tokens: GlobalTokens = "none",
    name: Name = numbered,
) -> Ready[list[tuple[FilledMask, ...]]]:
    """For each text, predictions for every mask token; arguments as of `unmask.models.model.Model.fill`.

    Raises:
        InvalidRequest: the encoder has no masked-LM head, the tokenizer has no mask token, a text
            contains no mask token, or ``top_k`` is out of range.
    """
    name = called(texts, name)
    encodings = reader.tokenized(texts, truncation=truncation, name=name, masks=True)
    return of_encodings(reader, encodings, top_k=top_k, global_tokens=global_tokens, name=name)


def of_encodings(
    reader: Reader,
    encodings: Sequence[Encoding],
    *,
    top_k: int = 5,
    global_tokens: GlobalTokens = "none",
    name: Name = numbered,
) -> Ready[list[tuple[FilledMask, ...]]]:
    """`prepare` for texts that are tokenized already, by a tokenizer that reads typed masks."""
    role = masked_lm_role(reader.spec, reader.name)
    top_k = whole_number("top_k", top_k, 1, reader.spec.embedding.vocabulary)
    tokenizer = reader.tokenizer
    masks = mask_positions(tokenizer, encodings, reader.name, name)

    def predictions(values: Sequence[tuple[Floats, Ids]]) -> list[tuple[FilledMask, ...]]:
        return [
            tuple(
                _filled(tokenizer, encoding, token, p_K, ids_K)
                for token, p_K, ids_K in zip(
                    places.tolist(), probabilities_MK.tolist(), ids_MK.tolist(), strict=True
                )
            )
            for encoding, places, (probabilities_MK, ids_MK) in zip(encodings, masks, values, strict=True)
        ]

    return Ready(
        encodings,
        partial(
            _most_probable, role=role, mask_id=tokenizer.mask_id, top_k=top_k, global_tokens=global_tokens
        ),
        predictions,
        ("fill", top_k, global_tokens),
        name,
        # An enhanced mask decoder reads more than the last hidden states.
        reads_last_states=role == "masked",
    )


def _most_probable(
    engine: Engine,
    *,
    encodings: Sequence[Encoding],
    role: str,
    mask_id: int | None,
    top_k: int,
    global_tokens: GlobalTokens,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name = numbered,
) -> list[tuple[Floats, Ids]]:
    """For each text the probabilities and ids of the best words at its masks, (M, K), others still masked.

    A DeBERTa whose masked-LM head was trained on an enhanced mask decoder predicts through it.
    Logits are computed only for masked tokens, probabilities in float32 (float64 for a float64 model).

    Raises:
        NonFiniteResult: a probability is not finite.
    """
    best: dict[int, tuple[Floats, Ids]] = {}
    for chosen, batch in text_batches(engine.spec, encodings, global_tokens, tokens_per_pass, progress):
        starts = batch.layout.offsets[:-1]
        rows_M = np.concatenate(
            [
                np.flatnonzero(encodings[index].ids == mask_id) + start
                for index, start in zip(chosen, starts, strict=True)
            ]
        )
        logits_MV = engine.logits(batch, role, rows_M)
        ids_MK = largest(logits_MV, top_k)  # of probabilities many can be equal
        p_MK = np.exp(np.take_along_axis(log_probabilities(logits_MV), ids_MK, 1))
        of_M = batch.layout.sequence_of_T[rows_M]
        require_finite(p_MK, chosen, of_M, "a predicted probability", name=name, dtype=engine.dtype)
        for place, index in enumerate(chosen.tolist()):
            best[index] = p_MK[of_M == place], ids_MK[of_M == place]
    return [best[index] for index in range(len(encodings))]


def largest(logits_MV: Floats, count: int) -> Ids:
    """The ids of the largest logits of each row, (M, K), the largest first and of equal ones the first."""
    words = logits_MV.shape[1]
    some_MK = np.argpartition(logits_MV, words - count, axis=1)[:, words - count :]
    some_MK.sort(axis=1)
    order_MK = np.argsort(-np.take_along_axis(logits_MV, some_MK, 1), axis=1, kind="stable")
    ids_MK: Ids = np.take_along_axis(some_MK, order_MK, 1)
    return ids_MK


@np.errstate(invalid="ignore")
def log_probabilities(logits_MV: Floats) -> Floats:
    """The logarithm of the softmax of each row, in the type of the logits."""
    below_MV: Floats = logits_MV - logits_MV.max(axis=1, keepdims=True)
    below_MV -= np.log(np.exp(below_MV).sum(axis=1, keepdims=True))
    return below_MV


def mask_positions(
    tokenizer: Tokenizer, encodings: Sequence[Encoding], model: str, name: Name
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
