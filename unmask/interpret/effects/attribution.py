"""Which tokens a token or a target comes from, without any N x N array: rollout and gradient attribution."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_choice, token_of
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import CELLS_AT_ONCE, LayerRows, RowBlock
from unmask.interpret.effects.target import AttributionTarget, InterventionRun, Mixed, Scale, TargetScore
from unmask.interpret.watch import Watch, unwatched
from unmask.kernels import MaskContext, Tile, probabilities
from unmask.spec import SoftmaxAttention

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
    not, so the residual gets less than half with ``max`` and more than half with ``min``. Norms,
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


@dataclass(frozen=True, eq=False)
class Attribution:
    """First-order attribution of a target to the attention to each token, in the target's units."""

    values: NDArray[np.float64]
    """Shape (N,): the sum of `by_layer`. Never negative."""
    by_layer: NDArray[np.float64]
    """Shape (L, N): the contribution of each layer's attention. The identity matrix that the rule starts from
    is not included in any layer."""
    target: AttributionTarget
    unit: str
    """The explained number: a word's "logit" or "log-probability in nats", as ``scale`` says; the "logit" or
    "sum of logits" of classes; the "length" of an embedding, or its "cosine" with another vector."""


def attribution(
    cache: ActivationCache,
    target: AttributionTarget,
    *,
    encoder: Encoder | None = None,
    scale: Scale = "logit",
    watch: Watch | None = None,
) -> Attribution:
    """The row of the target's token in ``R <- R + E R``, ``E = mean over heads of max(0, dy/dP * P)``.

    That is the authors' rule for self-attention, in which P and its gradient are those of one layer and R
    starts as the identity. Rows are followed from the last layer down, ``r <- r + r E``, which gives the same
    row; ``dy/dP_ij = do_i . v_j`` where o is the head's output, so one forward and backward pass per
    layer and its rows of attention are enough. Targets of the whole text start from the tokens that
    their head reads: the first token, or all tokens equally. In linear attention, P are the implied weights.
    If the enhanced mask decoder predicts words, its two passes replace the last layer: the token is the query
    twice, and both rows are added.

    Args:
        cache: the activation cache of the text.
        target: the output y: a word's logit or log-probability, a class's logit, or the length of an
            embedding.
        encoder: the same weights in modules that support gradients, if the encoder of the cache was optimized
            for inference (`Model.trainable_encoder`).
        scale: of a word, whether y is its logit, as in the paper, or its log-probability, which is what
            `importance` and `ablate` explain: that also rises where other words' logits fall.
        watch: called with the layers done after each pass through a layer and each block of its rows.

    Raises:
        InvalidRequest: no such target, or an encoder without gradients.
        NonFiniteResult: a gradient is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    check_choice("scale", scale, get_args(Scale))
    score = TargetScore(cache, target, encoder)
    start_N = score.start()
    layers, watch = cache.layer_count, watch or unwatched
    row_N, by_layer = start_N.clone(), np.zeros((layers, len(cache)))
    for mixed in InterventionRun(cache, encoder).descend(score, scale, "relevance", watch):
        tick = partial(watch, "relevance", layers - 1 - mixed.layer, layers)
        added_N = _added(cache, mixed, row_N, tick)
        by_layer[mixed.layer] = added_N.numpy()
        row_N += added_N
    if not np.isfinite(by_layer).all():
        raise NonFiniteResult("a gradient of this text is not finite; try dtype='float32'")
    return Attribution((row_N - start_N).numpy(), by_layer, target, score.unit_of_value(scale))


@torch.no_grad()
def _added(cache: ActivationCache, mixed: Mixed, row_N: Tensor, tick: Callable[[], None]) -> Tensor:
    """``r E`` of one layer, (N,), float64."""
    if mixed.decoder_q_NHK is not None:
        return _added_by_decoder(cache, mixed, mixed.decoder_q_NHK, int(row_N.argmax()))
    added_N = torch.zeros_like(row_N)
    layer = LayerRows(cache, mixed.layer)
    v_HNK = cache.projected(mixed.layer).v_NHK.transpose(0, 1).to(layer.dtype)
    of_globals = cache.projected_for_globals(mixed.layer)
    global_HNK = None if of_globals is None else of_globals.v_NHK.transpose(0, 1).to(layer.dtype)
    gradient_HNK = mixed.gradient_NHK.transpose(0, 1).to(layer.dtype)
    for block in layer.blocks(rows=reached(row_N)):
        values_HNK = global_HNK if block.of_globals and global_HNK is not None else v_HNK
        e_RC = _raised(block, gradient_HNK, values_HNK)
        rows, columns = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
        added_N[columns] += row_N[rows] @ e_RC.double().cpu()
        tick()
    return added_N


def _added_by_decoder(cache: ActivationCache, mixed: Mixed, q_NHK: Tensor, token: int) -> Tensor:
    """The contribution of the enhanced mask decoder's passes, each with a different query of one token."""
    spec = cache.mixer(mixed.layer).spec
    assert isinstance(spec, SoftmaxAttention)
    length, bias = len(cache), cache.bias(mixed.layer)
    _, k_NHK, v_NHK = (x.to(cache.dtype) for x in cache.projected(mixed.layer))
    tile, context = Tile(token, token + 1, 0, length), MaskContext.of(cache.batch.layout, 0, spec.heads)
    added_N = torch.zeros(length, dtype=torch.float64)
    for q_HK, gradient_HK in zip(q_NHK.to(k_NHK), mixed.gradient_NHK.to(k_NHK), strict=True):
        p_H1N, _ = probabilities(tile, q_HK[None], k_NHK, spec.pattern, bias, context=context)
        raised_HN = torch.einsum("hk,nhk->hn", gradient_HK, v_NHK) * p_H1N[:, 0]
        added_N += raised_HN.clamp(min=0).mean(0).double().cpu()
    return added_N


def _raised(block: RowBlock, gradient_HNK: Tensor, v_HNK: Tensor) -> Tensor:
    """``mean_h max(0, dy/dP * P)`` of a block, (R, C)."""
    gradient_HRK = gradient_HNK[:, block.first_row : block.end_row]
    v_HCK = v_HNK[:, block.first_column : block.end_column]
    return (gradient_HRK @ v_HCK.mT).mul_(block.p_HRC).clamp_(min=0).mean(0)
