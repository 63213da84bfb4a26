"""Ablation of heads and attention edges, and first-order estimates of its effect.

Ablation is measured, not estimated; Jain & Wallace 2019 and Serrano & Smith 2019 show why weights alone do
not say what a model used.

Axes: I heads times the width of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import token_of
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import LayerRows
from unmask.interpret.effects.intervention import Change, InterventionRun
from unmask.interpret.effects.target import AttributionTarget, TargetScore

How = Literal["zero", "mean"]
"""Replacement of a head's output: zero, or its mean over the tokens of this text at every token."""


@dataclass(frozen=True)
class Effect:
    """The value of a target with and without a part of the model."""

    before: float
    after: float
    effect: float
    """``before - after``: above 0 if the part helped."""
    unit: str


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """`Effect` of ablating each head on its own."""

    before: float
    after: NDArray[np.float64]
    """Shape (L, H); H of the layer with most heads, 0 effect where a layer has fewer."""
    effect: NDArray[np.float64]
    """Shape (L, H)."""
    unit: str
    how: How


@dataclass(frozen=True, eq=False)
class Importance:
    """Gradient estimates of every head's importance for a target (Michel, Levy & Neubig 2019)."""

    slopes: NDArray[np.float64]
    """How the target changes with a head's gate, ``sum over tokens of o . dy/do``, (L, H): what zeroing
    the head would take from the target if that were linear in it. 0 where a layer has fewer heads."""
    values: NDArray[np.float64]
    """Absolute slopes, each layer's divided by their Euclidean length, as in the paper; (L, H)."""
    unit: str


def ablate(
    cache: ActivationCache,
    target: AttributionTarget,
    layer: int,
    head: int,
    how: How = "zero",
    *,
    watch: Watch | None = None,
) -> Effect:
    """The target without one head, see `How`: the layers from there on run twice, with it and without.

    Raises:
        InvalidRequest: no such layer, head, target or method.
        Cancelled: ``watch``, called after each layer, stopped the work.
    """
    cache.head(layer, head)
    score, replay = TargetScore(cache, target), InterventionRun(cache)
    change = _without_head(replay, layer, head, how)
    return _effect(replay, score, layer, change, watch)


def ablate_edge(
    cache: ActivationCache,
    target: AttributionTarget,
    layer: int,
    head: int,
    *,
    query: int,
    key: int,
    renormalize: bool = False,
    watch: Watch | None = None,
) -> Effect:
    """The effect of removing one edge: one query of one head receives nothing from one key.

    What the query mixed becomes ``o_i - p_ij v_j``; its other weights stay as they are, and so sum to less
    than 1. With ``renormalize`` they are divided by ``1 - p_ij``, as if the key had been masked.

    Raises:
        InvalidRequest: no such layer, head, token or target; or the key is all that the query attends to,
            and ``renormalize`` asks to divide by what is left.
        Cancelled: ``watch`` stopped the work.
    """
    cache.head(layer, head)
    for name, token in (("query", query), ("key", key)):
        token_of(len(cache), token, name)
    score, replay = TargetScore(cache, target), InterventionRun(cache)
    if score.by_decoder and layer == replay.layers - 1:
        raise InvalidRequest(
            "the last layer runs as the enhanced mask decoder here, with queries of its own; cut an edge "
            "of a layer below, or ablate the head"
        )
    removed_K, p = _edge_value(cache, layer, head, query, key)
    if renormalize and p > 1 - 1e-6:
        raise InvalidRequest(
            f"token {query} gives all its attention to token {key} in this head, so nothing is left to "
            "renormalize; cut the edge without it"
        )
    part = _part(cache, layer, head)

    def change(o_NI: Tensor) -> Tensor:
        o_NI = o_NI.clone()
        left_K = o_NI[query, part] - removed_K.to(o_NI)
        o_NI[query, part] = left_K / (1 - p) if renormalize else left_K
        return o_NI

    return _effect(replay, score, layer, change, watch)


def ablate_each(
    cache: ActivationCache, target: AttributionTarget, how: How = "zero", *, watch: Watch | None = None
) -> HeadEffects:
    """`ablate` of every head in turn: L times H times what is left of a forward pass.

    ``watch`` is called after each layer that was run, with the heads done.

    Raises:
        InvalidRequest: no such target or method.
        Cancelled: ``watch`` stopped the work.
    """
    score, replay, watched = TargetScore(cache, target), InterventionRun(cache), watch or unwatched
    heads = [cache.heads(layer) for layer in range(cache.layer_count)]
    after, effect = (np.zeros((len(heads), max(heads))) for _ in range(2))
    done = 0

    def tick(*_: object) -> None:
        watched("ablating", done, sum(heads))

    before = replay.score(score, 0, watch=tick)
    after[:] = before
    for layer, count in enumerate(heads):
        whole = replay.score(score, layer, watch=tick)
        for head in range(count):
            change = _without_head(replay, layer, head, how)
            after[layer, head] = replay.score(score, layer, change, tick)
            effect[layer, head] = whole - after[layer, head]
            done += 1
    tick()
    return HeadEffects(before, after, effect, score.unit, how)


def importance(
    cache: ActivationCache,
    target: AttributionTarget,
    *,
    encoder: Encoder | None = None,
    watch: Watch | None = None,
) -> Importance:
    """Michel et al.'s importance of every head, from one pass down the layers.

    They average ``|o . dy/do|`` of a loss over examples; here it is of one text and one target: a word's
    log-probability, a class's logit, or the length of an embedding (whose cosine with itself has no slope).
    To first order only: `ablate_each` measures.

    Args:
        cache: the activation cache of the text.
        target: the target whose change is estimated.
        encoder: as in `unmask.interpret.effects.attribution.attribution`.
        watch: called after each layer.

    Raises:
        InvalidRequest: no such target, or no gradients.
        NonFiniteResult: a gradient is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    score = TargetScore(cache, target, encoder)
    heads = [cache.heads(layer) for layer in range(cache.layer_count)]
    slopes = np.zeros((len(heads), max(heads)))
    for mixed in InterventionRun(cache, encoder).descend(score, "log-probability", "importance", watch):
        of_heads = (mixed.o_NHK.double() * mixed.gradient_NHK.double()).sum((0, 2))
        slopes[mixed.layer, : heads[mixed.layer]] = of_heads.cpu().numpy()
    if not np.isfinite(slopes).all():
        raise NonFiniteResult("a gradient of this text is not finite; try dtype='float32'")
    lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
    values = np.abs(slopes) / np.where(lengths > 0, lengths, 1)
    return Importance(slopes, values, score.unit_of_value("log-probability"))


def _effect(
    replay: InterventionRun, score: TargetScore, layer: int, change: Change, watch: Watch | None
) -> Effect:
    before, after = (replay.score(score, layer, applied, watch) for applied in (None, change))
    return Effect(before, after, before - after, score.unit)


def _without_head(replay: InterventionRun, layer: int, head: int, how: How) -> Change:
    part = _part(replay.cache, layer, head)
    if how not in ("zero", "mean"):
        raise InvalidRequest(f"how is {how!r}; it can be zero or mean")
    mean_K = replay.mixed(layer)[:, head].mean(0) if how == "mean" else None

    def change(o_NI: Tensor) -> Tensor:
        o_NI = o_NI.clone()
        o_NI[:, part] = 0 if mean_K is None else mean_K
        return o_NI

    return change


def _edge_value(cache: ActivationCache, layer: int, head: int, query: int, key: int) -> tuple[Tensor, float]:
    """The contribution of a key to a query of a head, ``p_ij v_j``, (K,), and the p."""
    (block,) = LayerRows(cache, layer).blocks(head, slice(query, query + 1))
    visible = block.first_column <= key < block.end_column
    p = float(block.p_HRC[0, 0, key - block.first_column]) if visible else 0.0
    rows = slice(key, key + 1)
    of_globals = cache.projected_for_globals(layer, rows) if block.of_globals else None
    v_K = (of_globals or cache.projected(layer, rows)).v_NHK[0, head]
    return v_K * p, p


def _part(cache: ActivationCache, layer: int, head: int) -> slice:
    """The features of a head among those of all heads side by side."""
    width = cache.mixer(layer).spec.head_width
    return slice(head * width, (head + 1) * width)


def without_values(
    cache: ActivationCache,
    tokens: Sequence[int],
    *,
    layers: int | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """The states after the last layer if no query of any head receives the values of these tokens, (N, D).

    In every layer, what a query mixes becomes ``o_i - sum_j p_ij v_j`` over the tokens j; its other weights
    stay as they are, and so sum to less than 1. ``p`` and ``v`` are those of the changed states, so effects
    of lower layers are carried on. The tokens' own residual stream is not touched.

    Args:
        cache: the activation cache of the unchanged text.
        tokens: whose values are removed; none gives the states of the cache.
        layers: how many layers are run, from the first; None means all.
        watch: called after each layer.

    Raises:
        InvalidRequest: there is no such token.
        Cancelled: ``watch`` stopped the work.
    """
    chosen_M = torch.tensor([token_of(len(cache), token) for token in tokens], dtype=torch.int64)
    run, watch = InterventionRun(cache), watch or unwatched
    end = run.layers if layers is None else layers
    x_ND = cache.states[0]
    for layer in range(end):
        removed_NI = _values_of(_with_input(cache, layer, x_ND), layer, chosen_M)
        with torch.no_grad(), run.changed(layer, partial(_less, removed_NI)):
            x_ND = run.layer(layer, x_ND)
        watch("running layers", layer + 1, end)
    return x_ND


def _less(removed_NI: Tensor, o_NI: Tensor) -> Tensor:
    return o_NI - removed_NI.to(o_NI)


def _with_input(cache: ActivationCache, layer: int, x_ND: Tensor) -> ActivationCache:
    """The cache with another input of a layer."""
    states = list(cache.states)
    states[layer] = x_ND
    return ActivationCache(cache.encoder, cache.encoding, cache.batch, states, cache.final_ND).sharing(cache)


def _values_of(cache: ActivationCache, layer: int, tokens_M: Tensor) -> Tensor:
    """The contribution of the tokens to every query, ``sum_j p_ij v_j``, heads side by side: (N, H K)."""
    rows = LayerRows(cache, layer, norms=False)
    places = tokens_M.tolist()
    values_MHK = cache.projected(layer).v_NHK[places].to(rows.dtype)
    of_globals = cache.projected_for_globals(layer)
    mixed = []
    for block in rows.blocks():
        v_MHK = of_globals.v_NHK[places].to(rows.dtype) if block.of_globals and of_globals else values_MHK
        p_HRM = (
            torch.stack(
                [
                    block.p_HRC[..., token - block.first_column]
                    if block.first_column <= token < block.end_column
                    else torch.zeros_like(block.p_HRC[..., 0])
                    for token in places
                ],
                dim=-1,
            )
            if places
            else block.p_HRC[..., :0]
        )
        mixed.append(torch.einsum("hrm,mhk->rhk", p_HRM, v_MHK))
    return torch.cat(mixed).flatten(1)
