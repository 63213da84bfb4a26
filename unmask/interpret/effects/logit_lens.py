"""The logit lens: a model's own MLM head applied to every layer (nostalgebraist 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of, token_of, whole_number
from unmask.base.progress import Watch, unwatched
from unmask.encoder.decoder import decode_states, predicts_by_decoder, word_role
from unmask.errors import InvalidRequest, not_finite
from unmask.interpret.activation_cache import ActivationCache


@dataclass(frozen=True, eq=False)
class LogitLens:
    """Predictions at M tokens if the model ended after each level.

    Level 0 is the input of the first layer, level l the output of layer l - 1; the last is what the model
    predicts. If an enhanced mask decoder replaces the last layer,
    levels are the inputs of that decoder, and there is one level less.
    """

    tokens: NDArray[np.int64]
    """(M,)."""
    ids: NDArray[np.int64]
    """The most likely words first, (M, levels, k)."""
    probabilities: NDArray[np.float64]
    """Over the whole vocabulary, (M, levels, k)."""
    entropy: NDArray[np.float64]
    """Of each prediction in nats, (M, levels)."""
    distance: NDArray[np.float64]
    """Kullback-Leibler divergence of the model's final prediction from each level's prediction, in nats,
    (M, levels); 0 at the last level."""
    followed_ids: NDArray[np.int64]
    """A word to follow at each token, (M,): the one asked for, else the model's own first."""
    followed: NDArray[np.float64]
    """Its probability, (M, levels)."""
    ranks: NDArray[np.int64]
    """Number of words that are more likely than it, (M, levels)."""
    by_decoder: bool


def logit_lens(
    cache: ActivationCache,
    tokens: Sequence[int],
    *,
    top_k: int = 5,
    follow: Sequence[int] | None = None,
    watch: Watch | None = None,
) -> LogitLens:
    """Apply the model's MLM head to the states of every level, at some tokens.

    The final norm, if any, is applied first, because the MLM head expects it. Nothing is trained, unlike in
    the tuned lens (Belrose et al. 2023). The
    last level is what `unmask.tasks.fill` computes for the same tokens.

    Args:
        cache: the activation cache of the text, in which the tokens should be masked, see
            `unmask.text.tokenizer.masked`.
        tokens: where, each once.
        top_k: words for each prediction.
        follow: a word id for each token, whose probability is followed.
        watch: called after each level.

    Raises:
        InvalidRequest: the model does not predict words; or no such token, word, or number of words.
        NonFiniteResult: a probability is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    encoder, layout = cache.encoder, cache.batch.layout
    role = word_role(encoder)
    by_decoder = predicts_by_decoder(encoder, role)
    _check(cache, tokens, top_k, follow)
    selected_M = torch.tensor(list(tokens), device=cache.final_ND.device)
    watch = watch or unwatched

    def predicted(level: int) -> Tensor:
        """Logits (M, V) of a level, float32 at least."""
        x_ND = cache.states[level]
        if by_decoder:
            read_MD = decode_states(encoder, x_ND, layout, selected_M)
        elif level == cache.layer_count:
            read_MD = cache.final_ND[selected_M]
        else:
            read_MD = encoder.finished(x_ND[selected_M])
        logits_MV = encoder.logits(role, read_MD, layout)
        return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))

    last = cache.layer_count - by_decoder
    levels = []
    with torch.no_grad():
        last_MV = predicted(last)
        followed_M = (
            last_MV.argmax(-1) if follow is None else torch.tensor(list(follow), device=last_MV.device)
        )
        for level in range(last + 1):
            levels.append(_reading(predicted(level) if level < last else last_MV, last_MV, followed_M, top_k))
            watch("reading layers", level + 1, last + 1)
    ids, probabilities, entropy, distance, followed, ranks = (
        np.stack(part, axis=1) for part in zip(*levels, strict=True)
    )
    if not all(np.isfinite(part).all() for part in (probabilities, entropy, distance)):
        raise not_finite("a predicted probability", str(cache.states[0].dtype))
    return LogitLens(
        np.array(tokens, dtype=np.int64), ids, probabilities, entropy, distance,
        followed_M.cpu().numpy(), followed, ranks, by_decoder,
    )  # fmt: skip


def _reading(
    logits_MV: Tensor, last_MV: Tensor, followed_M: Tensor, top_k: int
) -> tuple[NDArray[np.int64] | NDArray[np.float64], ...]:
    """Of one level: ids, probabilities, entropy, distance, the followed word's probability and rank."""
    p_MV, log_MV, last_log_MV = logits_MV.softmax(-1), logits_MV.log_softmax(-1), last_MV.log_softmax(-1)
    best = p_MV.topk(top_k)
    entropy_M = torch.special.entr(p_MV).sum(-1)
    distance_M = (last_log_MV.exp() * (last_log_MV - log_MV)).sum(-1)
    followed_M1 = p_MV.gather(-1, followed_M[:, None])
    ranks_M = (logits_MV > logits_MV.gather(-1, followed_M[:, None])).sum(-1)
    floats = (x.double().cpu().numpy() for x in (best.values, entropy_M, distance_M, followed_M1[:, 0]))
    probabilities, entropy, distance, followed = floats
    return best.indices.cpu().numpy(), probabilities, entropy, distance, followed, ranks_M.cpu().numpy()


def _check(cache: ActivationCache, tokens: Sequence[int], top_k: int, follow: Sequence[int] | None) -> None:
    words = cache.encoder.spec.embedding.vocabulary
    if not tokens or len(set(tokens)) != len(tokens):
        raise InvalidRequest(f"tokens are {list(tokens)}; give at least one, each once")
    for token in tokens:
        token_of(len(cache), token)
    if whole_number("top_k", top_k, 1) > words:
        raise InvalidRequest(f"top_k is {top_k}; it can be 1 to {words}")
    if follow is not None and len(follow) != len(tokens):
        raise InvalidRequest(
            f"{len(follow)} words are to be followed at {len(tokens)} tokens; give one for each"
        )
    for word in follow or ():
        one_of("word", word, words, "this vocabulary has words")
