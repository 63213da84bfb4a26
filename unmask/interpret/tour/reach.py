"""The receptive field of a token, counted, and its effective receptive field, measured."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.recorded_text import run_ids
from unmask.model.encoder import Encoder
from unmask.model.kernels import MaskContext, Tile, allowed
from unmask.model.spec import SoftmaxAttention
from unmask.text import Encoding

SEQUENCES_AT_ONCE = 32
MOST_TOKENS = 160
"""Of a text: the encoder runs once for every token of it."""


@dataclass(frozen=True, eq=False)
class ReachAndEffect:
    """One token of one text, level by level: level 0 is the first layer's input."""

    target: int
    global_tokens: tuple[int, ...]
    reachable: NDArray[np.bool_]
    """(L + 1, N): whether token n of the text can influence the target's state at a level."""
    effect: NDArray[np.float64]
    """(L + 1, N): how far that state moves, ||a - b|| / ||a||, when token n is replaced."""
    effect_outside: float
    """The largest effect of a token that cannot reach the target: 0, or rounding."""
    half_within: float
    """Tokens on each side within which half of the effect on the last level comes from, the target itself
    left out; it is counted in whole tokens and divided in proportion."""


def reach_and_effect(
    encoder: Encoder, encoding: Encoding, target: int, replacement: int, global_tokens: tuple[int, ...] = ()
) -> ReachAndEffect:
    """Count the receptive field of a token, and perturb every token to measure the effective one.

    The field of stacked windows grows by a radius a layer (Beltagy, Peters & Cohan 2020); that the effect
    is far smaller than the field is known of convolutions (Luo et al. 2016).

    Args:
        encoder: any.
        encoding: at most `MOST_TOKENS` tokens.
        target: the token whose state is observed.
        replacement: the id that is put in a token's place, such as that of [MASK]; where it stands already,
            the effect is 0.
        global_tokens: which tokens are global, in encoders with global attention.

    Raises:
        InvalidRequest: no such token, or a text too long.
    """
    count = len(encoding)
    if not 0 <= target < count:
        raise InvalidRequest(f"there is no token {target}; the text has 0 to {count - 1}")
    if count > MOST_TOKENS:
        raise InvalidRequest(f"the text has {count} tokens; this experiment reads at most {MOST_TOKENS}")
    reachable = _reachable(encoder, count, target, global_tokens)
    effect = np.zeros(reachable.shape)
    for first in range(0, count, SEQUENCES_AT_ONCE):
        some = range(first, min(first + SEQUENCES_AT_ONCE, count))
        ids = [encoding.ids] + [encoding.ids.copy() for _ in some]
        for one, token in zip(ids[1:], some, strict=True):
            one[token] = replacement
        states = run_ids(encoder, ids, [list(global_tokens)] * len(ids))[: len(reachable)]
        for level, state in enumerate(states):
            a_SD = state.reshape(len(ids), count, -1)[:, target]
            effect[level, some.start : some.stop] = (
                (a_SD[1:] - a_SD[0]).norm(dim=-1) / a_SD[0].norm()
            ).numpy()
    outside = float(effect[~reachable].max(initial=0.0))
    return ReachAndEffect(target, global_tokens, reachable, effect, outside, _half_within(effect[-1], target))


def fields(encoder: Encoder, count: int, global_tokens: tuple[int, ...] = ()) -> list[NDArray[np.bool_]]:
    """(N, N) a level: whether the state of the row's token can know of the column's, level 0 first."""
    marks = np.zeros(count, dtype=np.bool_)
    marks[list(global_tokens)] = True
    found = [np.eye(count, dtype=np.bool_)]
    for number, layer in enumerate(encoder.spec.layers):
        seen = np.ones((count, count), dtype=np.bool_)
        if isinstance(layer.mixer, SoftmaxAttention):
            context = MaskContext(count, layer.mixer.heads, marks)
            tile = allowed(Tile.whole(count), layer.mixer.pattern, torch.device("cpu"), context)
            if tile is not None:
                seen = tile.numpy() if tile.dim() == 2 else tile.any(0).numpy()
        known = _through(seen | np.eye(count, dtype=np.bool_), found[-1])
        if number == 0 and encoder.spec.convolution is not None:
            near = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
            # The convolution reads embeddings, which know themselves alone.
            known |= near <= encoder.spec.convolution.kernel // 2
        found.append(known)
    return found


def _reachable(
    encoder: Encoder, count: int, target: int, global_tokens: tuple[int, ...]
) -> NDArray[np.bool_]:
    return np.stack([one[target] for one in fields(encoder, count, global_tokens)])


def _through(seen: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What a token knows after a layer: what those know that it sees."""
    reached: NDArray[np.bool_] = (seen.astype(np.float32) @ known.astype(np.float32)) > 0
    return reached


def _half_within(effect_N: NDArray[np.float64], target: int) -> float:
    apart = np.abs(np.arange(len(effect_N)) - target)
    others = apart > 0
    total = effect_N[others].sum()
    if total == 0:
        return 0.0
    by_distance = np.bincount(apart[others], effect_N[others]).cumsum() / total
    reached = int(np.argmax(by_distance >= 0.5))
    below = by_distance[reached - 1]
    return float(reached - 1 + (0.5 - below) / (by_distance[reached] - below))
