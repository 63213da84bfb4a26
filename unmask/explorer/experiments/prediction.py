"""What an answer rests on, token by token: the prediction of a masked word, and the cosine of two texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import token_of
from unmask.encoder.decoder import word_role, word_states
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.handshake import content_token, content_tokens
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.attribution import attribution
from unmask.interpret.effects.target import Word
from unmask.text import Encoding, PackedBatch

SEQUENCES_AT_ONCE = 32
TOP = 5
MOST_CERTAIN = 0.9
"""A word that is predicted with more than this needs its context little; another is shown first."""


@dataclass(frozen=True, eq=False)
class MaskedPrediction:
    """The prediction at one masked token of a text of N tokens."""

    token: int
    id: int
    """The word that stands there, whose prediction is explained."""
    probability: float
    rank: int
    """1 if it is the most likely word."""
    top_ids: NDArray[np.int64]
    """(k,): the most likely words."""
    top_probabilities: NDArray[np.float64]
    """(k,)."""
    attribution: NDArray[np.float64]
    """(N,): gradient attribution of the word's logit to attention (Chefer, Gur & Wolf 2021)."""
    effect: NDArray[np.float64]
    """(N,): by how many nats the word's log-probability falls when the token is masked, too; 0 at the masked
    token itself and negative where the word becomes more likely."""


def masked_prediction(
    encoder: Encoder,
    encoding: Encoding,
    mask_id: int,
    token: int | None = None,
    *,
    plain: Encoder | None = None,
) -> MaskedPrediction:
    """Mask a token, predict it, and measure what every other token adds to the prediction.

    Args:
        encoder: with an MLM head.
        encoding: the text without the mask.
        mask_id: the id of the mask token.
        token: the masked token; None chooses a content word that the model predicts well from its context.
        plain: the same weights in modules that support gradients, if ``encoder`` was optimized for inference.

    Raises:
        InvalidRequest: there is no such token, or the encoder has no MLM head.
    """
    word_role(encoder)
    token = _predictable(encoder, encoding, mask_id) if token is None else token
    token_of(len(encoding), token)
    if not len(encoding):
        raise InvalidRequest("the text has no tokens; give a text with words")
    id = int(encoding.ids[token])
    others = [[token, other] for other in range(len(encoding))]
    log_OV = _log_probabilities(encoder, encoding, mask_id, others, [token] * len(others))
    # Masking the masked token again changes nothing: that row is the prediction itself.
    log_V, follow_N = log_OV[token], log_OV[:, id]
    order = log_V.argsort(descending=True, stable=True)
    ids = encoding.ids.copy()
    ids[token] = mask_id
    cache = ActivationCache.of(encoder, encoding.with_pieces(ids, list(encoding.pieces)))
    relevance = attribution(cache, Word(token, id), encoder=plain)
    return MaskedPrediction(
        token,
        id,
        float(log_V[id].exp()),
        int((log_V > log_V[id]).sum()) + 1,
        order[:TOP].numpy(),
        log_V[order[:TOP]].exp().numpy(),
        relevance.values,
        (log_V[id] - follow_N).numpy(),
    )


def _predictable(encoder: Encoder, encoding: Encoding, mask_id: int) -> int:
    """The content word that is predicted best, those aside that are predicted almost surely."""
    tokens = content_tokens(encoding)
    if not tokens:
        return content_token(encoding)
    log_OV = _log_probabilities(encoder, encoding, mask_id, [[token] for token in tokens], tokens)
    p_O = log_OV[torch.arange(len(tokens)), torch.from_numpy(encoding.ids[tokens])].exp()
    p_O = torch.where(p_O > MOST_CERTAIN, -p_O, p_O)
    return tokens[int(p_O.argmax())]


def _log_probabilities(
    encoder: Encoder,
    encoding: Encoding,
    mask_id: int,
    hidden: Sequence[Sequence[int]],
    targets: Sequence[int],
) -> Tensor:
    """Log-probabilities of all words, (O, V), float64: a run per list of masked tokens, read at one token."""
    role, rows = word_role(encoder), []
    for first in range(0, len(hidden), SEQUENCES_AT_ONCE):
        some = range(first, min(first + SEQUENCES_AT_ONCE, len(hidden)))
        ids = [encoding.ids.copy() for _ in some]
        for sequence, number in zip(ids, some, strict=True):
            sequence[list(hidden[number])] = mask_id
        batch = PackedBatch.of_ids(ids, [encoding.token_type_ids] * len(ids))
        places = [at * len(encoding) + targets[number] for at, number in enumerate(some)]
        with torch.no_grad():
            states_OD = word_states(encoder, role, batch, places)
            logits_OV = encoder.logits(role, states_OD, batch.layout)
        rows.append(logits_OV.to("cpu", torch.float64).log_softmax(-1))
    return torch.cat(rows)


@dataclass(frozen=True, eq=False)
class Matching:
    """The cosine of the mean-pooled embeddings of two texts, of N and M tokens."""

    cosine: float
    query_parts: NDArray[np.float64]
    """(N,): what each token of the first text adds to the cosine; the sum is the cosine."""
    passage_parts: NDArray[np.float64]
    """(M,): what each token of the second text adds to the cosine; the sum is the cosine."""


def matching(query: ActivationCache, passage: ActivationCache) -> Matching:
    """Decompose a cosine between two means of states exactly, in float64.

    An embedding is the mean of the final states of its tokens, so its cosine with another vector u is the sum
    of (x_n . u) / (N |mean| |u|). These are the numbers by which the Search view explains a dense score
    (`unmask.search`). The other text's embedding is held fixed: the numbers say what a token adds, not what
    would change without it.
    """
    x_ND, y_MD = (cache.final_ND.double().cpu().numpy() for cache in (query, passage))
    a_D, b_D = (_unit(states.mean(0)) for states in (x_ND, y_MD))
    return Matching(float(a_D @ b_D), _parts(x_ND, b_D), _parts(y_MD, a_D))


def _unit(x_D: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x_D / max(float(np.linalg.norm(x_D)), 1e-300))


def _parts(x_ND: NDArray[np.float64], toward_D: NDArray[np.float64]) -> NDArray[np.float64]:
    length = max(float(np.linalg.norm(x_ND.mean(0))), 1e-300)
    return np.asarray(x_ND @ toward_D / (len(x_ND) * length))
