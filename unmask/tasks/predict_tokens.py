"""What a language model predicts at every token of a text, and how well: loss, rank and best guesses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest, not_finite
from unmask.spec.encoder import lm_role
from unmask.tasks.batches import TOKENS_PER_PASS, batches
from unmask.tasks.fill import Prediction, largest, log_probabilities
from unmask.text import Encoding, PackedBatch, Tokenizer
from unmask.text.tokenizer import spellings

Context = Literal["all other tokens", "earlier tokens"]
"""What a prediction is made from."""


@dataclass(frozen=True)
class PredictedToken:
    """One token of the text and the model's predictions for it."""

    token: int
    """Its position among the tokens."""
    id: int
    piece: str
    """The vocabulary's spelling."""
    start: int
    """The offset of its first character in the text."""
    end: int
    """The offset after its last character."""
    loss: float
    """-log p of the token, in nats."""
    rank: int
    """The number of tokens that are more probable, plus 1."""
    predictions: tuple[Prediction, ...]
    """The most probable tokens, most probable first."""


@dataclass(frozen=True)
class TokenPredictions:
    """The result of `predict_tokens`."""

    context: Context
    tokens: tuple[PredictedToken, ...]
    """All tokens but the special ones around the text."""

    @property
    def loss(self) -> float:
        """The mean of the tokens' losses, in nats."""
        return float(np.mean([token.loss for token in self.tokens]))

    @property
    def accuracy(self) -> float:
        """The share of tokens that are the most probable one."""
        return float(np.mean([token.rank == 1 for token in self.tokens]))


def predict_tokens(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    *,
    top_k: int = 5,
    tokens_per_pass: int = TOKENS_PER_PASS,
    model: str = "the model",
    progress: Progress | None = None,
) -> TokenPredictions:
    """What the encoder's masked-LM head predicts at every token.

    An encoder that reads in both directions predicts a token from all others: each token is masked in a copy
    of the text of its own (Salazar et al. 2020), so N tokens take N passes over the text. An encoder with
    causal attention predicts it from the tokens before, all in one pass. The first is therefore given more,
    and its mean loss is not the logarithm of a text's probability.

    Raises:
        InvalidRequest: there is no masked-LM head, no mask token where one is needed, no token to predict, or
            ``top_k`` is out of range.
        NonFiniteResult: a loss is not finite.
    """
    causal, role = engine.spec.causal, lm_role(engine.spec, model)
    top_k = whole_number("top_k", top_k, 1, engine.spec.embedding.vocabulary)
    if not causal and tokenizer.mask_id is None:
        raise InvalidRequest(f"the tokenizer of {model} has no mask token, so no token can be predicted")
    places_M = np.flatnonzero(~encoding.special)
    if causal:
        places_M = places_M[places_M > 0]
    if not len(places_M):
        raise InvalidRequest("the text has no token that could be predicted; give one that is not empty")
    tokens: list[PredictedToken] = []
    for some_M, logits_MV in _logits(
        engine, tokenizer, encoding, places_M, role=role, tokens_per_pass=tokens_per_pass
    ):
        tokens.extend(_predicted(tokenizer, encoding, some_M, logits_MV, top_k))
        if progress is not None:
            progress(len(tokens), len(places_M))
    if not np.isfinite([token.loss for token in tokens]).all():
        raise not_finite("the loss of a token", engine.dtype)
    return TokenPredictions(
        "earlier tokens" if causal else "all other tokens",
        tuple(sorted(tokens, key=lambda token: token.token)),
    )


@dataclass(frozen=True)
class ComparedTokens:
    """A stretch of the text that both models cut at its ends, usually one token of each."""

    start: int
    """The offset of its first character in the text."""
    end: int
    """The offset after its last character."""
    first: tuple[PredictedToken, ...]
    second: tuple[PredictedToken, ...]

    @property
    def losses(self) -> tuple[float, float]:
        """The sum of its tokens' losses by each model, in nats."""
        return sum(token.loss for token in self.first), sum(token.loss for token in self.second)


def compare_predictions(first: TokenPredictions, second: TokenPredictions) -> tuple[ComparedTokens, ...]:
    """The predictions of two models for one text, stretch by stretch, whatever their vocabularies.

    Tokens of one model after the last place that both cut are left out.
    """
    ends = {token.end for token in first.tokens} & {token.end for token in second.tokens}
    segments, parts = [], (iter(first.tokens), iter(second.tokens))
    for end in sorted(ends):
        both = tuple(tuple(_until(tokens, end)) for tokens in parts)
        starts = [tokens[0].start for tokens in both if tokens]
        if len(starts) == len(both):
            segments.append(ComparedTokens(min(starts), end, *both))
    return tuple(segments)


def _until(tokens: Iterator[PredictedToken], end: int) -> Iterator[PredictedToken]:
    """The next tokens, up to the first that ends there."""
    for token in tokens:
        yield token
        if token.end >= end:
            return


def _logits(
    engine: Engine,
    tokenizer: Tokenizer,
    encoding: Encoding,
    places_M: NDArray[np.int64],
    *,
    role: str,
    tokens_per_pass: int,
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Some tokens at a time, and the logits over the vocabulary for each, (M, V)."""
    length = len(encoding)
    if engine.spec.causal:
        batch = PackedBatch.of_ids([encoding.ids], [encoding.token_type_ids])
        for first in range(0, len(places_M), TOKENS_PER_PASS):
            some_M = places_M[first : first + TOKENS_PER_PASS]
            yield some_M, engine.logits(batch, role, some_M - 1)
        return

    mask_id = tokenizer.mask_id
    assert mask_id is not None

    def packed(chosen: NDArray[np.int64]) -> PackedBatch:
        copies = np.tile(encoding.ids, (len(chosen), 1))
        copies[np.arange(len(chosen)), places_M[chosen]] = mask_id
        return PackedBatch.of_ids(list(copies), [encoding.token_type_ids] * len(chosen))

    for chosen, batch in batches([length] * len(places_M), packed, tokens_per_pass):
        rows_M = np.arange(len(chosen)) * length + places_M[chosen]
        yield places_M[chosen], engine.logits(batch, role, rows_M)


def _predicted(
    tokenizer: Tokenizer,
    encoding: Encoding,
    places_M: NDArray[np.int64],
    logits_MV: Floats,
    top_k: int,
) -> Iterator[PredictedToken]:
    log_p_MV = log_probabilities(logits_MV)
    own_M1 = np.take_along_axis(log_p_MV, encoding.ids[places_M][:, None], 1)
    ranks_M = 1 + (log_p_MV > own_M1).sum(axis=1)
    ids_MK = largest(logits_MV, top_k)
    p_MK = np.exp(np.take_along_axis(log_p_MV, ids_MK, 1))
    for row, place in enumerate(places_M.tolist()):
        yield PredictedToken(
            token=place,
            id=int(encoding.ids[place]),
            piece=encoding.pieces[place],
            start=int(encoding.offsets[place, 0]),
            end=int(encoding.offsets[place, 1]),
            loss=-float(own_M1[row, 0]),
            rank=int(ranks_M[row]),
            predictions=tuple(
                Prediction(*spellings(tokenizer, id), id, probability)
                for id, probability in zip(ids_MK[row].tolist(), p_MK[row].tolist(), strict=True)
            ),
        )
