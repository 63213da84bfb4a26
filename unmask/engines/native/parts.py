"""What stands outside of layers in numpy: norms, activations, dense layers, pooling, and the heads.

Heads take hidden states and give vectors or logits, in float32; `unmask.encoder.heads` defines the same as
modules of torch. Free of torch.

Axes: N rows; K inputs; J outputs of a dense layer; M selected tokens, V words of the vocabulary,
E numbers of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

from unmask.base.optional import has_torch
from unmask.errors import InvalidRequest
from unmask.spec import (
    Activation,
    CheckpointOutput,
    Classifier,
    Dense,
    DoubleTransform,
    EncoderSpec,
    LayerNorm,
    MaskedLM,
    MultiVector,
    NoNorm,
    Norm,
    OutputLayer,
    PooledVector,
    PoolingMode,
    ResidualTransform,
    RMSNorm,
    SparseVector,
    Transform,
    UnitLength,
)
from unmask.spec.embedding_head import QUERY_WEIGHTS, output_layers
from unmask.spec.encoder import head_of
from unmask.spec.heads import is_per_token, role_of
from unmask.text.batch import SequenceLayout, check_unpooled

if TYPE_CHECKING:
    from torch import Tensor


Float32s = NDArray[np.float32]
Weights = Mapping[str, Float32s]
"""The tensors of an encoder by the names of its ``state_dict``."""

SMALLEST_LENGTH = 1e-12
"""A vector shorter than this is divided by it instead of by its length, as torch does."""


def unit_length(x_NK: NDArray[Any]) -> Float32s:
    """Each row divided by its Euclidean norm."""
    lengths_N1 = np.maximum(np.linalg.norm(x_NK, axis=1, keepdims=True), SMALLEST_LENGTH)
    shortened: Float32s = np.divide(x_NK, lengths_N1, dtype=np.float32)
    return shortened


def norm_scale(norm: Norm, name: str, weights: Weights) -> Float32s:
    """What a norm multiplies with; ``name`` begins the names of its tensors."""
    weight = weights[f"{name}.weight"]
    return weight + np.float32(1) if isinstance(norm, RMSNorm) and norm.one_plus else weight


def normalized(norm: Norm | None, name: str, x_NK: Float32s, weights: Weights) -> Float32s:
    """Each row after a norm, which is computed in float64; ``name`` begins the names of its tensors."""
    if norm is None:
        return x_NK
    if isinstance(norm, NoNorm):
        return x_NK * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    centered = x_NK.astype(np.float64)
    if isinstance(norm, LayerNorm):
        centered -= centered.mean(1, keepdims=True)
    centered /= np.sqrt((centered**2).mean(1, keepdims=True) + norm.eps)
    centered *= norm_scale(norm, name, weights)
    if isinstance(norm, LayerNorm) and norm.bias:
        centered += weights[f"{name}.bias"]
    return centered.astype(np.float32)


def dense(name: str, x_NK: Float32s, weights: Weights, *, bias: bool = True) -> Float32s:
    """A dense layer, (N, J)."""
    y_NJ: Float32s = x_NK @ weights[f"{name}.weight"].T
    if bias:
        y_NJ += weights[f"{name}.bias"]
    return y_NJ


@np.errstate(over="ignore", invalid="ignore")  # limits are right, and NaN stays
def activated(activation: Activation, x: Float32s) -> Float32s:
    """Each number after an activation, of the same shape."""
    return ACTIVATIONS[activation](x)


def _relu(x: Float32s) -> Float32s:
    result: Float32s = np.maximum(x, np.float32(0))
    return result


def _silu(x: Float32s) -> Float32s:
    result: Float32s = x / (1 + np.exp(-x))
    return result


def _gelu_tanh(x: Float32s) -> Float32s:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    result: Float32s = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result


def _gelu(x: Float32s) -> Float32s:
    """``x * P(X <= x)`` of a normal X: half of erfc(-x / sqrt 2), which numpy does not have.

    For z >= 0, erfc(z) is ``t * exp(-z^2 + p(t))`` with ``t = 2 / (2 + z)`` and a smooth p, whose polynomial
    is accurate to 1e-8 of the value up to z = 9; beyond it the value is below 1e-36.
    """
    far = np.abs(x.astype(np.float64)) * math.sqrt(0.5)
    nearness = 2 / (2 + far)
    tails = nearness * np.exp(_tail_exponent()(nearness) - far * far) / 2
    result: Float32s = (x * np.where(x < 0, tails, 1 - tails)).astype(np.float32)
    return result


FARTHEST = 9.0
"""The largest z for which the exponent of `_gelu` is fitted."""


@cache
def _tail_exponent() -> Polynomial:
    """p(t) = log(erfc(z) / t) + z^2 of `_gelu`, interpolated between values of `math.erfc`."""

    def exponents(places: NDArray[np.float64]) -> NDArray[np.float64]:
        found = [(math.erfc(2 / t - 2), t, 2 / t - 2) for t in places.tolist()]
        return np.array([math.log(tail / t) + z * z for tail, t, z in found])

    fitted = Chebyshev.interpolate(exponents, 12, domain=[2 / (2 + FARTHEST), 1.0])
    return Polynomial(fitted.convert(kind=Polynomial).convert().coef)


ACTIVATIONS: dict[Activation, Callable[[Float32s], Float32s]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
    "tanh": np.tanh,
}
"""Every activation by its name."""


def pooled(x_TD: Float32s, layout: SequenceLayout, mode: PoolingMode, skipped: int = 0) -> Float32s:
    """One vector per sequence, (S, D): see `PoolingMode`.

    The first ``skipped`` tokens of each sequence, which has more, are not pooled.
    """
    starts_S = layout.offsets[:-1] + skipped
    if mode == "cls":
        return x_TD[starts_S]
    if mode == "last":
        return x_TD[layout.offsets[1:] - 1]
    lengths_S1: Float32s = (layout.lengths - skipped)[:, None].astype(np.float32)
    if mode == "weighted_mean":
        x_TD = x_TD * (layout.positions_T + 1)[:, None].astype(np.float32)
    reduce = np.maximum if mode == "max" else np.add
    if skipped:
        # Pairs of the first and the last token: every second range, from the end of one sequence to the
        # first pooled token of the next, is dropped.
        ends = np.stack((starts_S, layout.offsets[1:]), axis=1).reshape(-1)[:-1]
        pooled_SD = reduce.reduceat(x_TD, ends, axis=0)[::2]
    else:
        pooled_SD = reduce.reduceat(x_TD, starts_S, axis=0)
    match mode:
        case "max":
            return pooled_SD
        case "mean":
            divisors_S1 = lengths_S1
        case "mean_sqrt_len":
            divisors_S1 = np.sqrt(lengths_S1, dtype=np.float32)
        case "weighted_mean":
            divisors_S1 = (lengths_S1 * (2 * skipped + 1 + lengths_S1) / 2).astype(np.float32)  # of positions
        case _:
            assert_never(mode)
    return np.divide(pooled_SD, divisors_S1, dtype=np.float32)


TOKENS_AT_ONCE = 256
"""Tokens whose logits over the vocabulary are in memory at once: 31 MB for 30,522 words."""
NOT_FINITE = np.errstate(invalid="ignore", over="ignore")
"""Numbers that are not finite are refused in results, with the text's name, and not reported here."""
OF_HEADS = ("heads.", "pooler.", "output.")
"""How the names of tensors begin that heads alone read."""


class Heads:
    """What follows the layers of an encoder. Weights and results are in float32.

    Args:
        spec: of the encoder.
        weights: its tensors, and those of its output's layers. One is read when it is first needed.
        output: what its checkpoint gives; None for none.
        in_halves: whether products with the whole vocabulary are in bfloat16 where torch is installed, which
            take a third of the time; everything else is in float32.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        weights: Weights,
        output: CheckpointOutput | None = None,
        *,
        in_halves: bool = False,
    ) -> None:
        self._spec, self._weights = spec, _Kept(weights)
        self._in_halves = in_halves and has_torch()
        self._halves: dict[str, Tensor] = {}
        self._output: tuple[OutputLayer, ...] = () if output is None else output_layers(output)

    def read(self) -> None:
        """Read all weights now, so that processes that are forked later share them."""
        words = {_words(head) for head in self._spec.heads if isinstance(head, MaskedLM)}
        for name in self._weights:
            if name in words and self._in_halves:
                self._half(name)
            elif (
                name in words
                or name.startswith(OF_HEADS)
                or (self._spec.norm_in_heads and name.startswith("final_norm."))
            ):
                _ = self._weights[name]

    @NOT_FINITE
    def logits(
        self, role: str, x_TD: Float32s, layout: SequenceLayout, tokens: NDArray[np.int64] | None = None
    ) -> Float32s:
        """Logits of a head, see `unmask.engines.engine.Engine.logits`.

        Raises:
            InvalidRequest: there is no such head, or it reads a whole sequence and tokens are selected.
        """
        head, name = head_of(self._spec, role), f"heads.{role}"
        if tokens is not None and not is_per_token(head):
            raise InvalidRequest(f"the {role} head reads a whole sequence; leave tokens out")
        if self._spec.norm_in_heads and getattr(head, "reads", None) != "unnormed":
            x_TD = normalized(self._spec.final_norm, "final_norm", x_TD, self._weights)
        if isinstance(head, MaskedLM):
            return self._word_logits(head, name, x_TD if tokens is None else x_TD[tokens])
        match head.reads:
            case "late":
                return pooled(self._class_logits(head, name, x_TD), layout, "mean")
            case "tokens" | "unnormed":
                state = x_TD
            case "tokens_and_first":
                state = x_TD + np.repeat(pooled(x_TD, layout, "cls"), layout.lengths, axis=0)
            case "pooler":
                assert self._spec.pooler is not None
                first_SD = dense("pooler.dense", pooled(x_TD, layout, "cls"), self._weights)
                state = activated(self._spec.pooler.activation, first_SD)
            case "first":
                state = pooled(x_TD, layout, "cls")
            case "last":
                state = pooled(x_TD, layout, "last")
            case "mean":
                state = pooled(x_TD, layout, "mean")
            case _:
                assert_never(head.reads)
        return self._class_logits(head, name, state if tokens is None else state[tokens])

    @NOT_FINITE
    def embed(
        self, x_TD: Float32s, layout: SequenceLayout, output: PooledVector, *, skipped: int = 0
    ) -> Float32s:
        """Sentence embeddings, (S, E); the first ``skipped`` tokens of each sequence are not pooled.

        Raises:
            InvalidRequest: the encoder lacks a dense layer of the output, or a sequence has no token to pool.
        """
        layers = self._output if output.projections else ()
        further = output.projections[len(layers) :]
        if any(not isinstance(layer, UnitLength) for layer in further) or len(layers) > len(
            output.projections
        ):
            raise InvalidRequest(
                f"the output has {len(output.projections)} layers after pooling and the encoder has "
                f"{len(layers)}; use the output of its own checkpoint"
            )
        check_unpooled(layout, skipped)
        e_SE = np.concatenate([pooled(x_TD, layout, mode, skipped) for mode in output.pooling], axis=1)
        e_SE = self._through(layers, e_SE)
        for _ in further:
            e_SE = unit_length(e_SE)
        e_SE = e_SE[:, : output.dimensions]
        return unit_length(e_SE) if output.normalize else e_SE

    @NOT_FINITE
    def token_vectors(self, x_MD: Float32s, output: MultiVector) -> Float32s:
        """One vector per token, (M, E)."""
        e_ME = self._through(self._output, x_MD)
        return unit_length(e_ME) if output.normalize else e_ME

    @NOT_FINITE
    def word_weights(self, x_ND: Float32s, output: SparseVector) -> Float32s:
        """The weight of each word for one text from its last hidden states, (V,).

        Activations never fall as the logit grows, so that of the largest logit is the largest.
        """
        head = head_of(self._spec, "masked")
        assert isinstance(head, MaskedLM)

        def activation(logits: Float32s) -> Float32s:
            weights: Float32s = np.log1p(np.maximum(logits, np.float32(0)))
            return weights if output.activation == "log1p_relu" else np.log1p(weights)

        parts = (
            self._word_logits(head, "heads.masked", x_ND[start : start + TOKENS_AT_ONCE])
            for start in range(0, len(x_ND), TOKENS_AT_ONCE)
        )
        if output.pooling == "max":
            return activation(reduce(np.maximum, (logits_MV.max(0) for logits_MV in parts)))
        return reduce(np.add, (activation(logits_MV).sum(0) for logits_MV in parts))

    def static_weights(self) -> Float32s:
        """The weight of each word for queries, (V,).

        Raises:
            InvalidRequest: the encoder has none.
        """
        if QUERY_WEIGHTS not in self._weights:
            raise InvalidRequest("the encoder has no weights of words for queries; use another checkpoint")
        return self._weights[QUERY_WEIGHTS]

    def _word_logits(self, head: MaskedLM, name: str, x_MD: Float32s) -> Float32s:
        x_ME = self._transformed(head.transform, f"{name}.transform", x_MD)
        stored = x_ME.shape[1] - head.beside
        logits_MV = self._products(x_ME[:, :stored], _words(head))
        if head.beside:
            logits_MV += x_ME[:, stored:] @ self._weights[f"{name}.beside.weight"]
        if head.bias or head.own_bias:
            logits_MV += self._weights[f"{name}.decoder.bias" if head.own_bias else f"{name}.bias"]
        return logits_MV

    def _products(self, x_ME: Float32s, name: str) -> Float32s:
        """The products of some states with the vectors of all words, (M, V)."""
        logits_MV: Float32s
        if not self._in_halves:
            logits_MV = x_ME @ self._weights[name].T
            return logits_MV
        import torch

        with torch.inference_mode():
            logits_MV = (torch.from_numpy(x_ME).bfloat16() @ self._half(name).T).float().numpy()
        return logits_MV

    def _half(self, name: str) -> Tensor:
        """A matrix in bfloat16."""
        import torch

        if name not in self._halves:
            self._halves[name] = torch.tensor(self._weights.once(name)).bfloat16()
        return self._halves[name]

    def _class_logits(self, head: Classifier, name: str, x: Float32s) -> Float32s:
        x = normalized(
            head.input_norm, f"{name}.norm", unit_length(x) if head.normalize else x, self._weights
        )
        x = self._transformed(head.transform, f"{name}.transform", x)
        return dense(f"{name}.out", x, self._weights, bias=head.bias)

    def _transformed(
        self, spec: Transform | DoubleTransform | ResidualTransform | None, name: str, x: Float32s
    ) -> Float32s:
        match spec:
            case None:
                return x
            case Transform():
                y = activated(spec.activation, dense(f"{name}.dense", x, self._weights, bias=spec.bias))
            case DoubleTransform():
                y = activated(spec.activation, dense(f"{name}.inner", x, self._weights, bias=spec.bias))
                return activated(spec.activation, dense(f"{name}.outer", y, self._weights, bias=spec.bias))
            case ResidualTransform():
                y = activated(spec.activation, dense(f"{name}.inner", x, self._weights))
                y = x + dense(f"{name}.outer", y, self._weights)
            case _:
                assert_never(spec)
        return normalized(spec.norm, f"{name}.norm", y, self._weights)

    def _through(self, layers: tuple[OutputLayer, ...], x: Float32s) -> Float32s:
        for number, layer in enumerate(layers):
            x = self._after(layer, f"output.{number}", x)
        return x

    def _after(self, layer: OutputLayer, name: str, x: Float32s) -> Float32s:
        match layer:
            case Dense():
                y = dense(f"{name}.linear", x, self._weights, bias=layer.bias)
                if layer.activation is not None:
                    y = activated(layer.activation, y)
                if not layer.residual:
                    return y
                same = layer.width == x.shape[1]
                return y + (x if same else dense(f"{name}.residual", x, self._weights, bias=False))
            case LayerNorm():
                return normalized(layer, f"{name}.norm", x, self._weights)
            case UnitLength():
                return unit_length(x)
            case _:
                assert_never(layer)


def _words(head: MaskedLM) -> str:
    """The name of the matrix of a vector for each word."""
    return "embedding.words.weight" if head.tied else f"heads.{role_of(head)}.decoder.weight"


class _Kept(Weights):
    """Tensors that are read once, when they are first needed."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._read: dict[str, Float32s] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __getitem__(self, name: str) -> Float32s:
        if name not in self._read:
            # Aligned, or each product would copy it.
            self._read[name] = np.require(self._weights[name], np.float32, ["C", "A"])
        return self._read[name]

    def once(self, name: str) -> Float32s:
        """A tensor that is not needed again."""
        return self._weights[name]
