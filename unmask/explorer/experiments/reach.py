"""The receptive field of a token, counted and measured, and what global layers among local ones change."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, run_ids
from unmask.kernels import MaskContext, Tile, allowed
from unmask.spec import AttentionPattern, FullAttention, SlidingWindow, SlidingWindowGlobal, SoftmaxAttention
from unmask.text import Encoding

SEQUENCES_AT_ONCE = 32
MOST_TOKENS = 160
"""Maximum tokens of a text; the encoder runs once for every token."""


@dataclass(frozen=True, eq=False)
class ReachAndEffect:
    """Influence on one token of a text at every level; level 0 is the input of the first layer."""

    target: int
    global_tokens: tuple[int, ...]
    reachable: NDArray[np.bool_]
    """(L + 1, N): whether token n of the text can influence the target's state at a level."""
    effect: NDArray[np.float64]
    """(L + 1, N): relative change of that state, ||a - b|| / ||a||, when token n is replaced."""
    effect_outside: float
    """The largest effect of a token outside the receptive field: 0, or rounding."""
    half_within: float
    """Tokens on each side that account for half of the effect on the last level, without the target itself;
    interpolated linearly between whole tokens."""


def reach_and_effect(
    encoder: Encoder, encoding: Encoding, target: int, replacement: int, global_tokens: tuple[int, ...] = ()
) -> ReachAndEffect:
    """Count the receptive field of a token, and perturb every token to measure the effective one.

    The receptive field of stacked windows grows by one radius per layer (Beltagy, Peters & Cohan 2020). In
    convolutional networks the effective receptive field is known to be much smaller (Luo et al. 2016).

    Args:
        encoder: any encoder.
        encoding: at most `MOST_TOKENS` tokens.
        target: the token whose state is observed.
        replacement: the id that replaces a token, such as that of [MASK]; the effect is 0 if the token
            already has it.
        global_tokens: which tokens are global, in encoders with global attention.

    Raises:
        InvalidRequest: there is no such token, or the text is too long.
    """
    count = len(encoding)
    if not 0 <= target < count:
        raise InvalidRequest(f"there is no token {target}; the text has 0 to {count - 1}")
    if count > MOST_TOKENS:
        raise InvalidRequest(f"the text has {count} tokens; this experiment reads at most {MOST_TOKENS}")
    reachable = np.stack([field[target] for field in fields(encoder, count, global_tokens)])
    effect = np.zeros(reachable.shape)
    for first in range(0, count, SEQUENCES_AT_ONCE):
        batch = range(first, min(first + SEQUENCES_AT_ONCE, count))
        ids = [encoding.ids] + [encoding.ids.copy() for _ in batch]
        for sequence, token in zip(ids[1:], batch, strict=True):
            sequence[token] = replacement
        states = run_ids(encoder, ids, [list(global_tokens)] * len(ids))[: len(reachable)]
        for level, state in enumerate(states):
            a_SD = state.reshape(len(ids), count, -1)[:, target]
            effect[level, batch.start : batch.stop] = (
                (a_SD[1:] - a_SD[0]).norm(dim=-1) / a_SD[0].norm()
            ).numpy()
    outside = float(effect[~reachable].max(initial=0.0))
    return ReachAndEffect(target, global_tokens, reachable, effect, outside, _half_within(effect[-1], target))


def fields(encoder: Encoder, count: int, global_tokens: tuple[int, ...] = ()) -> list[NDArray[np.bool_]]:
    """(N, N) per level: whether the column's token can influence the state of the row's token; level 0
    first."""
    marks = np.zeros(count, dtype=np.bool_)
    marks[list(global_tokens)] = True
    projection = encoder.spec.embedding.projection
    apart_NN = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    reached = [apart_NN <= (0 if projection is None else projection.neighbors)]
    for number, layer in enumerate(encoder.spec.layers):
        attended_NN = np.ones((count, count), dtype=np.bool_)
        if isinstance(layer.mixer, SoftmaxAttention):
            context = MaskContext(count, layer.mixer.heads, marks)
            tile = allowed(Tile.whole(count), layer.mixer.pattern, torch.device("cpu"), context)
            if tile is not None:
                attended_NN = tile.numpy() if tile.dim() == 2 else tile.any(0).numpy()
        influences = _through(attended_NN | np.eye(count, dtype=np.bool_), reached[-1])
        if number == 0 and encoder.spec.convolution is not None:
            near_NN = apart_NN <= encoder.spec.convolution.kernel // 2
            influences |= _through(near_NN, reached[0])  # it reads embeddings
        reached.append(influences)
    return reached


def _through(attended_NN: NDArray[np.bool_], influences: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Influences after a layer: the union of the influences on all tokens that it attends to."""
    return np.asarray((attended_NN.astype(np.float32) @ influences.astype(np.float32)) > 0)


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


LENGTHS = (512, 2048, 8192)


@dataclass(frozen=True, eq=False)
class Alternation:
    """Measurements of every layer on one text."""

    radius: tuple[int | None, ...]
    """(L,): window radius of a layer; None for full attention."""
    distance: NDArray[np.float64]
    """(L, H): mean distance of attention in tokens, over queries."""
    even_distance: NDArray[np.float64]
    """(L,): mean distance of uniform attention over the allowed keys: the effect of the pattern alone."""
    beyond: NDArray[np.float64]
    """(L, H): mass on keys beyond the smallest radius of any layer, which no local layer can attend to."""
    field: NDArray[np.int64]
    """(L + 1,): number of tokens that can influence the middle token's state at a level; level 0 is the
    input."""
    lengths: tuple[int, ...]
    pairs: tuple[int, ...]
    """Number of scores of one head, summed over layers, for each length; counted, not measured."""
    pairs_whole: tuple[int, ...]
    """``pairs`` with full attention in every layer."""


def alternation(recorded: RecordedText) -> Alternation:
    """Compare local and global layers.

    Beltagy, Peters & Cohan 2020 combine local and global attention in a layer; Warner et al. 2024 alternate
    layers.

    Raises:
        InvalidRequest: a layer has no softmax, or its attention pattern is neither full nor a window.
    """
    radii = [_radius(recorded.mixer(layer).pattern, layer) for layer in range(recorded.layer_count)]
    nearest = min((radius for radius in radii if radius is not None), default=len(recorded))
    count = len(recorded)
    places = torch.arange(count, dtype=torch.float64)
    apart_NN = (places[None, :] - places[:, None]).abs()
    distance, even, beyond = [], [], []
    for layer in range(recorded.layer_count):
        p_HNN, allowed_HNN = recorded.probabilities(layer), recorded.allowed(layer)
        distance.append((p_HNN * apart_NN).sum(-1).mean(-1).numpy())
        beyond.append((p_HNN * (apart_NN > nearest)).sum(-1).mean(-1).numpy())
        even_HN = (allowed_HNN * apart_NN).sum(-1) / allowed_HNN.sum(-1)
        even.append(float(even_HN.mean()))
    levels = fields(recorded.encoder, count)
    return Alternation(
        tuple(radii),
        np.stack(distance),
        np.array(even),
        np.stack(beyond),
        np.array([int(field[count // 2].sum()) for field in levels]),
        LENGTHS,
        tuple(sum(pairs(length, radius) for radius in radii) for length in LENGTHS),
        tuple(len(radii) * length**2 for length in LENGTHS),
    )


def pairs(length: int, radius: int | None) -> int:
    """Number of pairs of a query and a key within a radius of each other in a text."""
    if radius is None or radius >= length - 1:
        return length**2
    return length * (2 * radius + 1) - radius * (radius + 1)


def _radius(pattern: AttentionPattern, layer: int) -> int | None:
    match pattern:
        case FullAttention():
            return None
        case SlidingWindow(radius, 1) | SlidingWindowGlobal(SlidingWindow(radius, 1)):
            return radius
        case _:
            raise InvalidRequest(
                f"layer {layer} has {type(pattern).__name__} attention; this experiment needs windows"
            )
