"""Which tokens a token or a target comes from, without any N x N array: rollout and gradient attribution."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_choice, one_of, token_of, whole_number
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import CELLS_AT_ONCE, LayerRows, RowBlock
from unmask.interpret.effects.intervention import InterventionRun, Mixed
from unmask.interpret.effects.target import AttributionTarget, Scale, TargetScore, Word
from unmask.kernels import MaskContext, Tile, probabilities
from unmask.spec import SoftmaxAttention
from unmask.text import Tokenizer

Fusion = Literal["mean", "max", "min", "norm"]
"""How the heads of a layer are fused: ``mean``, as in the paper; ``max`` or ``min``; or
``norm``, which weights each head by the norm of its values, ``sum_h p_hij n_hj`` (after Kobayashi et al.
2020, who add the vectors of different heads before taking norms; here norms are added)."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """The sources of a token's state (or of the mean of all tokens), level by level."""

    values: NDArray[np.float64]
    """Shape (L + 1, N), rows sum to 1. Row L is the start; row l holds the shares of the input states of
    layer l, so row 0 refers to the embeddings of the tokens."""
    fusion: Fusion
    token: int | None


def rollout(
    cache: ActivationCache, token: int | None = None, *, fusion: Fusion = "mean", watch: Watch | None = None
) -> Rollout:
    """Trace a token's state from the last layer down to the input.

    At each layer the row becomes ``r (P + I)`` with rows of ``P + I`` divided by their sum, as in the
    authors' code: half attention, half residual, where rows of P sum to 1. With ``max`` and ``min`` they do
    not, so the residual gets less than half with ``max`` and more than half with ``min``, or where attention
    sinks take a part of the rows. Norms,
    feed-forward networks and value vectors are not considered. Exact in float64 up to the encoder's own
    dtype.

    Args:
        cache: the activation cache of the text.
        token: where to start; None starts from all tokens equally.
        fusion: how heads are fused, see `Fusion`.
        watch: called with the layers done before each layer and after each block of its rows.

    Raises:
        InvalidRequest: no such token or fusion.
        Cancelled: ``watch`` stopped the work.
    """
    length, layers = len(cache), cache.layer_count
    if fusion not in get_args(Fusion):
        raise InvalidRequest(f"fusion is {fusion!r}; it can be {', '.join(get_args(Fusion))}")
    token = None if token is None else token_of(length, token)
    values = np.zeros((layers + 1, length))
    values[-1, slice(None) if token is None else token] = 1 if token is not None else 1 / length
    watch = watch or unwatched
    for layer in reversed(range(layers)):
        tick = partial(watch, "rollout", layers - 1 - layer, layers)
        tick()
        values[layer] = _below(LayerRows(cache, layer), torch.from_numpy(values[layer + 1]), fusion, tick)
    watch("rollout", layers, layers)
    return Rollout(values, fusion, token)


@torch.no_grad()
def _below(layer: LayerRows, row_N: Tensor, fusion: Fusion, tick: Callable[[], None]) -> NDArray[np.float64]:
    """One step: the row of the level below."""
    below_N = torch.zeros_like(row_N)
    for block in layer.blocks(rows=reached(row_N), cells=CELLS_AT_ONCE):
        rows, columns = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
        fused_RC = _fused(block, fusion)
        share_R = row_N[rows] / (fused_RC.sum(-1) + 1)
        below_N[columns] += share_R @ fused_RC
        below_N[rows] += share_R
        tick()
    return below_N.numpy()


def reached(row_N: Tensor) -> slice:
    """The range of tokens outside of which a row is 0; no others need to be read."""
    places = torch.nonzero(row_N)[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _fused(block: RowBlock, fusion: Fusion) -> Tensor:
    """The fused heads of a block, (R, C), float64, on the CPU."""
    p_HRC = block.p_HRC
    match fusion:
        case "norm":
            fused_RC = torch.einsum("hrc,hc->rc", p_HRC, block.norms_HC.to(p_HRC)).double()
            fused_RC = fused_RC / fused_RC.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        case "max":
            fused_RC = p_HRC.amax(0).double()
        case "min":
            fused_RC = p_HRC.amin(0).double()
        case "mean":
            fused_RC = p_HRC.mean(0, dtype=torch.float64)
        case _:
            assert_never(fusion)
    return fused_RC.cpu()


Method = Literal["chefer", "attention_x_gradient", "input_x_gradient", "integrated_gradients"]
"""How `attribution` distributes a target over the tokens; see there."""

Baseline = str | int
"""What integrated gradients start from: ``"zero"``, vectors of zeros; or the embedding of a token, by its id,
in place of every token that is not special."""

STEPS = 50
"""Points of the path of integrated gradients."""

TOKENS_AT_ONCE = 1024
"""Of the copies of a text that run in one batch."""


@dataclass(frozen=True)
class Completeness:
    """How well integrated gradients add up to what they explain, in the target's units."""

    baseline: Baseline
    steps: int
    at_text: float
    """The target on the text, F(x)."""
    at_baseline: float
    """The target on the baseline, F(x')."""
    gap: float
    """The sum of all values minus ``F(x) - F(x')``: the error of the integral. More steps reduce it."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """First-order attribution of a target to the tokens, in the target's units."""

    values: NDArray[np.float64]
    """Shape (N,). Of a method about attention the sum of `by_layer`; of ``chefer`` never negative."""
    by_layer: NDArray[np.float64] | None
    """Shape (L, N): the contribution of each layer's attention; None for a method about the input. The
    identity matrix that the rule of ``chefer`` starts from is not included in any layer."""
    target: AttributionTarget
    unit: str
    """The explained number: a word's "logit" or "log-probability in nats", as ``scale`` says; the "logit" or
    "sum of logits" of classes; the "length" of an embedding, or its "cosine" with another vector."""
    method: Method = "chefer"
    completeness: Completeness | None = None
    """Of integrated gradients."""


def attribution(
    cache: ActivationCache,
    target: AttributionTarget,
    *,
    method: Method = "chefer",
    encoder: Encoder | None = None,
    scale: Scale = "logit",
    baseline: Baseline = "zero",
    steps: int = STEPS,
    watch: Watch | None = None,
) -> Attribution:
    """Attribute a target y to the tokens, by one of four methods.

    ``chefer`` (Chefer, Gur & Wolf, ICCV 2021): the row of the target's token in ``R <- R + E R``,
    ``E = mean over heads of max(0, dy/dP * P)``. That is the authors' rule for self-attention, in which P and
    its gradient are those of one layer and R starts as the identity; their rules for two modalities and for
    encoder-decoders have no use here. Rows are followed from the last layer down, ``r <- r + r E``, which
    gives the same row; ``dy/dP_ij = do_i . v_j`` where o is the head's output, so one forward and backward
    pass per layer and its rows of attention are enough. Targets of the whole text start from the tokens that
    their head reads: the first token, or all tokens equally. In linear attention, P are the implied weights.
    If the enhanced mask decoder predicts words, its two passes replace the last layer: the token is the query
    twice, and both rows are added.

    ``attention_x_gradient``: ``sum over heads and queries of P_ij dy/dP_ij`` for each key j, layer by layer,
    with its sign and without following layers (Serrano & Smith 2019 rank weights by this product; Grad-SAM,
    Barkan et al. 2021, keeps positive gradients alone and takes means). The sum over the tokens of a layer is
    that of its heads' slopes in `unmask.interpret.effects.ablation.importance`.

    ``input_x_gradient`` (Shrikumar et al. 2016): ``x_j . dy/dx_j``, where x is the input of the first layer:
    the embedding of each token, with its position, after the norm.

    ``integrated_gradients`` (Sundararajan, Taly & Yan 2017): ``(x - x')_j`` times the mean of dy/dx_j on the
    straight line from a baseline x' to x, by Gauss-Legendre quadrature. The values add up to
    ``y(x) - y(x')``; `Completeness` states how nearly.

    Args:
        cache: the activation cache of the text.
        target: the output y: a word's logit or log-probability, a class's logit (of a cross-encoder: the
            score of the pair), or the length of an embedding or its cosine with another vector.
        method: see above.
        encoder: the same weights in modules that support gradients, if the encoder of the cache was optimized
            for inference (`Model.trainable_encoder`).
        scale: of a word, whether y is its logit, as in the paper, or its log-probability, which is what
            `importance` and `ablate` explain: that also rises where other words' logits fall.
        baseline: of integrated gradients, see `Baseline`. A cosine has no direction at zeros: give a token.
        steps: of integrated gradients, the points of the path.
        watch: called with the layers done after each pass through a layer and each block of its rows.

    Raises:
        InvalidRequest: no such target, method or baseline, or an encoder without gradients.
        NonFiniteResult: a gradient is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    check_choice("scale", scale, get_args(Scale))
    check_choice("method", method, get_args(Method))
    score, run = TargetScore(cache, target, encoder), InterventionRun(cache, encoder)
    completeness, by_layer = None, None
    match method:
        case "chefer" | "attention_x_gradient":
            by_layer = _by_layer(run, score, method, scale, watch or unwatched)
            values = by_layer.sum(0)
        case "input_x_gradient":
            *_, first = run.descend(score, scale, "gradients", watch)
            values = _products(cache.states[0], first.input_gradient_ND)
        case "integrated_gradients":
            values, completeness = _integrated(run, score, scale, (baseline, steps), watch or unwatched)
        case _:
            assert_never(method)
    if not np.isfinite(values).all():
        raise NonFiniteResult("a gradient of this text is not finite; try dtype='float32'")
    unit = score.unit_of_value(scale)
    return Attribution(values, by_layer, target, unit, method, completeness)


def _by_layer(
    run: InterventionRun, score: TargetScore, method: Method, scale: Scale, watch: Watch
) -> NDArray[np.float64]:
    """The contribution of each layer's attention, (L, N)."""
    cache, follows = run.cache, method == "chefer"
    row_N = score.start() if follows else torch.ones(len(cache), dtype=torch.float64)
    by_layer = np.zeros((run.layers, len(cache)))
    for mixed in run.descend(score, scale, "relevance", watch):
        tick = partial(watch, "relevance", run.layers - 1 - mixed.layer, run.layers)
        added_N = _added(score, mixed, row_N, tick, raised=follows)
        by_layer[mixed.layer] = added_N.numpy()
        if follows:
            row_N += added_N
    return by_layer


def _products(x_ND: Tensor, gradient_ND: Tensor) -> NDArray[np.float64]:
    products_N: NDArray[np.float64] = (x_ND.double() * gradient_ND.double()).sum(-1).cpu().numpy()
    return products_N


def _integrated(
    run: InterventionRun, score: TargetScore, scale: Scale, path: tuple[Baseline, int], watch: Watch
) -> tuple[NDArray[np.float64], Completeness]:
    """Values and completeness of the path from a baseline, in so many steps."""
    baseline, steps = path[0], whole_number("steps", path[1], 1)
    x_ND = run.cache.states[0]
    start_ND = baseline_states(run.cache, baseline, run.encoder)
    at_text, at_start = (float(run.score_from(score, 0, ends, scale)[0]) for ends in (x_ND, start_ND))
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    alphas, shares = torch.from_numpy((nodes + 1) / 2).to(x_ND), torch.from_numpy(weights / 2)
    total_ND = torch.zeros(x_ND.shape, dtype=torch.float64)
    at_once = max(1, TOKENS_AT_ONCE // len(x_ND))
    for first in range(0, steps, at_once):
        some_S = alphas[first : first + at_once]
        points_TD = (start_ND + some_S[:, None, None] * (x_ND - start_ND)).flatten(0, 1)

        def tick(what: str, done: int, of: int, first: int = first, some: int = len(some_S)) -> None:
            watch(what, first * of + some * done, steps * of)

        *_, lowest = run.descend(score, scale, "integrated gradients", tick, points_TD)
        gradient_SND = lowest.input_gradient_ND.double().cpu().view(len(some_S), *x_ND.shape)
        total_ND += torch.einsum("s,snd->nd", shares[first : first + at_once], gradient_SND)
    values = _products((x_ND - start_ND).cpu(), total_ND)
    gap = float(values.sum()) - (at_text - at_start)
    return values, Completeness(baseline, steps, at_text, at_start, gap)


BASELINES = ("mask", "pad", "zero")
"""The names of baselines, see `named_baseline`."""


def named_baseline(name: str, tokenizer: Tokenizer) -> Baseline:
    """The `Baseline` of a name: vectors of zeros, or the tokenizer's mask or padding token.

    Raises:
        InvalidRequest: there is no such baseline, or the tokenizer has no such token.
    """
    check_choice("baseline", name, BASELINES)
    if name == "zero":
        return "zero"
    piece = tokenizer.special_tokens.get(name)
    id_ = None if piece is None else tokenizer.token_to_id(piece)
    if id_ is None:
        raise InvalidRequest(f"the tokenizer has no {name} token; take baseline='zero' (or --baseline zero)")
    return id_


def baseline_states(cache: ActivationCache, baseline: Baseline, encoder: Encoder | None = None) -> Tensor:
    """The input of the first layer for a baseline, (N, D): special tokens of a text keep their own, but for
    ``"zero"``.

    Raises:
        InvalidRequest: there is no such token.
    """
    if baseline == "zero":
        return torch.zeros_like(cache.states[0])
    embedding, batch = (encoder or cache.encoder).embedding, cache.batch
    words = embedding.spec.vocabulary
    if isinstance(baseline, str):
        raise InvalidRequest(
            f"baseline is {baseline!r}; it can be 'zero' or the id of a token, such as tokenizer.mask_id"
        )
    one_of("baseline", baseline, words, "this vocabulary has words")
    ids_N, segments_N = (
        torch.from_numpy(array).to(cache.states[0].device) for array in (batch.ids_T, batch.token_type_ids_T)
    )
    special_N = torch.tensor(cache.encoding.special, device=ids_N.device)
    with torch.no_grad():
        baseline_N = torch.where(special_N, ids_N, baseline)
        states_ND: Tensor = embedding.at(
            baseline_N,
            segments_N,
            embedding.places(ids_N, batch.layout),
            embedding.scales(baseline_N, batch.layout),
            embedding.around(batch.layout),
        )
    return states_ND.to(cache.states[0].dtype)


@torch.no_grad()
def _added(
    score: TargetScore, mixed: Mixed, row_N: Tensor, tick: Callable[[], None], *, raised: bool
) -> Tensor:
    """``r E`` of one layer, (N,), float64; unless ``raised``, E is the sum over heads of ``dy/dP * P``."""
    cache = score.cache
    if mixed.decoder_q_NHK is not None:
        assert isinstance(score.target, Word)
        return _added_by_decoder(cache, mixed, mixed.decoder_q_NHK, score.target.token, raised=raised)
    added_N = torch.zeros_like(row_N)
    layer = LayerRows(cache, mixed.layer)
    v_HNK = cache.projected(mixed.layer).v_NHK.transpose(0, 1).to(layer.dtype)
    of_globals = cache.projected_for_globals(mixed.layer)
    global_HNK = None if of_globals is None else of_globals.v_NHK.transpose(0, 1).to(layer.dtype)
    gradient_HNK = mixed.gradient_NHK.transpose(0, 1).to(layer.dtype)
    for block in layer.blocks(rows=reached(row_N)):
        values_HNK = global_HNK if block.of_globals and global_HNK is not None else v_HNK
        e_HRC = _products_of_weights(block, gradient_HNK, values_HNK)
        e_RC = e_HRC.clamp_(min=0).mean(0) if raised else e_HRC.sum(0)
        rows, columns = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
        added_N[columns] += row_N[rows] @ e_RC.double().cpu()
        tick()
    return added_N


def _added_by_decoder(
    cache: ActivationCache, mixed: Mixed, q_NHK: Tensor, token: int, *, raised: bool
) -> Tensor:
    """The contribution of the enhanced mask decoder's passes, each with a different query of one token."""
    spec = cache.mixer(mixed.layer).spec
    assert isinstance(spec, SoftmaxAttention)
    length, bias = len(cache), cache.bias(mixed.layer)
    _, k_NHK, v_NHK = (x.to(cache.dtype) for x in cache.projected(mixed.layer))
    tile, context = Tile(token, token + 1, 0, length), MaskContext.of(cache.batch.layout, 0, spec.heads)
    added_N = torch.zeros(length, dtype=torch.float64)
    for q_HK, gradient_HK in zip(q_NHK.to(k_NHK), mixed.gradient_NHK.to(k_NHK), strict=True):
        p_H1N, _ = probabilities(tile, q_HK[None], k_NHK, spec.pattern, bias, context=context)
        e_HN = torch.einsum("hk,nhk->hn", gradient_HK, v_NHK) * p_H1N[:, 0]
        e_N = e_HN.clamp(min=0).mean(0) if raised else e_HN.sum(0)
        added_N += e_N.double().cpu()
    return added_N


def _products_of_weights(block: RowBlock, gradient_HNK: Tensor, v_HNK: Tensor) -> Tensor:
    """``dy/dP * P`` of a block, (H, R, C)."""
    gradient_HRK = gradient_HNK[:, block.first_row : block.end_row]
    v_HCK = v_HNK[:, block.first_column : block.end_column]
    return (gradient_HRK @ v_HCK.mT).mul_(block.p_HRC)
