"""From attention weights to new states: values, the residual stream, and how alike states become.

Axes: I features that the output projection reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of, token_of
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText
from unmask.interpret.attention.rows import out_matrix
from unmask.interpret.geometry.layers import by_coordinate, mean_cosine


@dataclass(frozen=True, eq=False)
class Values:
    """What one token receives in one layer, and one head's part of it; H heads, N tokens, L layers.

    A *part* of a sum s is (c . s) / (s . s) of its term c: parts add up to 1, and a term that points away
    from the sum has a negative part.
    """

    layer: int
    head: int
    query: int
    shares: NDArray[np.float64]
    """(N,): the head's attention weights of the query."""
    value_norms: NDArray[np.float64]
    """(N,): ||v W_O|| of every key (Kobayashi et al. 2020)."""
    contributions: NDArray[np.float64]
    """(N,): the product of the two, the norm of what each key adds to the head's output."""
    parts: NDArray[np.float64]
    """(N,): each key's part of the head's output; they add up to 1."""
    head_norm: float
    """Norm of the head's output, the weighted sum of values after the output projection."""
    head_parts: NDArray[np.float64]
    """(H,): each head's part of the attention output. With ``bias_part`` they add up to 1."""
    bias_part: float
    """The part of the output projection's bias."""
    before_norm: float
    """Norm of the residual stream before the layer adds to it."""
    attention_norm: float
    """Norm of the attention output that is added to it."""
    feedforward_norm: float
    """Norm of the feed-forward output that is added after that."""
    attention_part: NDArray[np.float64]
    """(L,): the part of the attention output in the sum of residual stream and attention output, by layer."""
    feedforward_part: NDArray[np.float64]
    """(L,): the part of the feed-forward output in the sum that it is added to, by layer."""
    kept_cosine: NDArray[np.float64]
    """(L,): cosine between the token's state before and after each layer."""
    error: float
    """Largest difference between the states computed here and those that the encoder computed, divided by
    the norm of the state; rounding. The output of a layer with a convolution is left out."""


@dataclass(frozen=True)
class _Update:
    """One layer's two additions to the residual stream of one token; vectors (D,), or as wide as the narrow
    states in a layer with a bottleneck, whose parts add to these; ``after`` is always (D,)."""

    before: Tensor
    attention: Tensor
    between: Tensor
    """The residual stream that the feed-forward output is added to."""
    feedforward: Tensor
    after: Tensor


def values(recorded: RecordedText, layer: int, head: int, query: int) -> Values:
    """Follow one token through a layer (Vaswani et al. 2017; Elhage et al. 2021 for the residual stream).

    Values are mixed and projected in float64 from the recorded ones; norms and feed-forward parts are
    evaluated by the encoder's own modules in its dtype.

    Raises:
        InvalidRequest: there is no such layer, head or token, or a layer has no softmax.
    """
    mixer = recorded.mixer(layer)
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    token_of(len(recorded), query)
    p_N = recorded.probabilities(layer)[head, query]
    v_ND = recorded.values[layer][:, head] @ out_matrix(recorded.encoder.block(layer).attention)[head].cpu()
    c_ND = p_N[:, None] * v_ND
    out_D = c_ND.sum(0)
    updates = [_update(recorded, at, query) for at in range(recorded.layer_count)]
    mixed_HD, bias_D = _heads(recorded, layer, query)
    chosen = updates[layer]
    # A convolution adds what it reads of the neighbors to the output of the first layer.
    alone = [at for at in range(recorded.layer_count) if at > 0 or recorded.encoder.spec.convolution is None]
    return Values(
        layer,
        head,
        query,
        shares=p_N.numpy(),
        value_norms=v_ND.norm(dim=-1).numpy(),
        contributions=c_ND.norm(dim=-1).numpy(),
        parts=(c_ND @ out_D / _square(out_D)).numpy(),
        head_norm=float(out_D.norm()),
        head_parts=(mixed_HD @ chosen.attention / _square(chosen.attention)).numpy(),
        bias_part=_part(bias_D, chosen.attention),
        before_norm=float(chosen.before.norm()),
        attention_norm=float(chosen.attention.norm()),
        feedforward_norm=float(chosen.feedforward.norm()),
        attention_part=np.array(
            [_part(update.attention, update.before + update.attention) for update in updates]
        ),
        feedforward_part=np.array(
            [_part(update.feedforward, update.between + update.feedforward) for update in updates]
        ),
        kept_cosine=np.array(
            [
                float(
                    torch.cosine_similarity(recorded.states[at][query], recorded.states[at + 1][query], dim=0)
                )
                for at in range(recorded.layer_count)
            ]
        ),
        error=max(
            (
                float((updates[at].after - y_D).abs().max() / y_D.norm())
                for at in alone
                for y_D in [recorded.states[at + 1][query]]
            ),
            default=0.0,
        ),
    )


def _heads(recorded: RecordedText, layer: int, query: int) -> tuple[Tensor, Tensor]:
    """What all heads add for one token, (H, D), and what no head adds, (D,): the bias of the output
    projection, and convolutions beside the heads.
    """
    block = recorded.encoder.block(layer)
    mixer = block.attention
    mixed_HK = torch.einsum("hn,nhk->hk", recorded.probabilities(layer)[:, query], recorded.values[layer])
    mixed_HD = block.scaled(torch.einsum("hk,hkd->hd", mixed_HK, out_matrix(mixer).cpu()))
    none_1I = torch.zeros(1, mixer.spec.heads * mixer.spec.head_width)
    beside_NI = recorded.beside_attention(layer)
    apart_1I = none_1I if beside_NI is None else torch.cat((none_1I, beside_NI[query, None]), -1)
    with torch.no_grad():
        bias_D = mixer.out(apart_1I.to(recorded.encoder.device, recorded.dtype))[0]
    bias_D = block.scaled(bias_D.to("cpu", torch.float64))
    if not block.output_norms:
        return mixed_HD, bias_D
    # An RMSNorm multiplies each coordinate, by a factor that the whole sum decides.
    sum_D = mixed_HD.sum(0) + bias_D
    factor_D = _by(recorded, block.attention_output_norm, sum_D) / sum_D
    return mixed_HD * factor_D, bias_D * factor_D


def _by(recorded: RecordedText, module: Callable[[Tensor], Tensor], x_D: Tensor) -> Tensor:
    with torch.no_grad():
        return module(_as_read(recorded, x_D))[0].to("cpu", torch.float64)


def _as_read(recorded: RecordedText, x_D: Tensor) -> Tensor:
    """A vector as the encoder's modules read it, (1, D)."""
    return x_D[None].to(recorded.encoder.device, recorded.dtype)


def _update(recorded: RecordedText, layer: int, query: int) -> _Update:
    recorded.mixer(layer)
    block = recorded.encoder.block(layer)
    mixed_HD, bias_D = _heads(recorded, layer, query)
    by = partial(_by, recorded)
    read, attention = recorded.states[layer][query], mixed_HD.sum(0) + bias_D
    before = read if block.bottleneck is None else by(block.narrowed, read)
    between = before + attention
    if block.norm_first:
        feedforward = by(block.feedforward, by(block.feedforward_norm, between))
        feedforward = block.scaled(by(block.feedforward_output_norm, feedforward))
        after = between + feedforward
        if block.gate is not None:
            embedded_1D = _as_read(recorded, recorded.states[0][query])
            after = after + by(lambda x: block.gated(x, recorded.encoder.read(embedded_1D, layer)), after)
        return _Update(before, attention, between, feedforward, by(block.times_factor, after))
    if block.attention_sum_norm:
        attention = by(block.attention_output_norm, between)
        between = before + attention
    between = by(block.attention_norm, between)
    feedforward = by(block.feedforward, between)
    after = by(block.feedforward_norm, between + feedforward)
    if block.bottleneck is not None:
        after = by(partial(block.widened, x=_as_read(recorded, read)), after)
    return _Update(before, attention, between, feedforward, after)


def _square(x_D: Tensor) -> Tensor:
    return (x_D @ x_D).clamp_min(1e-300)


def _part(term_D: Tensor, sum_D: Tensor) -> float:
    return float(term_D @ sum_D / _square(sum_D))


LEFT_OUT = (1, 3)
"""Numbers of coordinates to leave out, those with the largest contribution to the mean cosine first."""


@dataclass(frozen=True, eq=False)
class Collapse:
    """Measurements of every level; level 0 is the input of the first layer. Arrays are (L + 1,) unless
    stated."""

    cosine: NDArray[np.float64]
    """Mean cosine of all pairs of different tokens: 0 if unrelated, 1 if all point in the same direction
    (Ethayarajh 2019)."""
    cosine_left_out: dict[int, NDArray[np.float64]]
    """The mean cosine without the coordinates that contribute most to it (after Timkey & van Schijndel
    2021)."""
    share_of_one: NDArray[np.float64]
    """The largest share of the mean cosine that a single coordinate contributes; 1 / D by chance."""
    width: int
    """D."""
    residual: NDArray[np.float64]
    """||X - mean row of X|| / ||X|| in the Frobenius norm: 0 if all tokens are equal."""
    averaged: NDArray[np.float64]
    """The same residual for the input if layers only averaged it with their attention (mean over heads),
    without values, residual connections and feed-forward networks. Such a network is known to collapse (Dong,
    Cordonnier & Loukas 2021, who use another norm)."""


def collapse(recorded: RecordedText) -> Collapse:
    """Cosines and residuals of a text's states by level.

    Raises:
        InvalidRequest: there are fewer than three tokens, or a layer has no softmax.
    """
    if len(recorded) < 3:
        raise InvalidRequest(f"the text has {len(recorded)} tokens; give at least 3")
    cosines, shares = [], []
    left_out: dict[int, list[float]] = {count: [] for count in LEFT_OUT}
    for state_ND in recorded.states:
        x_ND = state_ND.numpy()
        added_D = by_coordinate(x_ND)
        order_D, total = (-added_D).argsort(), float(added_D.sum())
        cosines.append(total)
        shares.append(float(added_D.max()) / total if total > 0 else 0.0)
        for count, values in left_out.items():
            values.append(mean_cosine(x_ND[:, order_D[min(count, len(order_D) - 1) :]]))
    averaged, y_ND = [_residual(recorded.states[0])], recorded.states[0]
    for layer in range(recorded.layer_count):
        y_ND = recorded.probabilities(layer).mean(0) @ y_ND
        averaged.append(_residual(y_ND))
    return Collapse(
        np.array(cosines),
        {count: np.array(values) for count, values in left_out.items()},
        np.array(shares),
        recorded.states[0].shape[-1],
        np.array([_residual(x_ND) for x_ND in recorded.states]),
        np.array(averaged),
    )


def _residual(x_ND: Tensor) -> float:
    return float((x_ND - x_ND.mean(0)).norm() / x_ND.norm().clamp_min(1e-300))
