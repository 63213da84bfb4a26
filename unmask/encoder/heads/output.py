"""The layers that an output adds to the encoder, after pooling or on each token's state."""

from collections.abc import Callable
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.parts import ACTIVATIONS
from unmask.spec import CheckpointOutput, Dense, EncoderSpec, LayerNorm, OutputLayer, SparseVector, UnitLength
from unmask.spec.embedding_head import output_layers, output_width, pooled_width


class DenseLayer(nn.Module):
    """A dense layer; computes in the dtype of its input, which may be wider than that of its weights."""

    def __init__(self, spec: Dense, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.linear = nn.Linear(width, spec.width, bias=spec.bias)
        self.residual: nn.Linear | None = None
        if spec.residual and spec.width != width:
            self.residual = nn.Linear(width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., width of the input) in, (..., width) out."""
        bias = self.linear.bias
        y = functional.linear(x, self.linear.weight.to(x), None if bias is None else bias.to(x))
        if self.spec.activation is not None:
            y = ACTIVATIONS[self.spec.activation](y)
        if not self.spec.residual:
            return y
        return y + (x if self.residual is None else functional.linear(x, self.residual.weight.to(x)))


class NormLayer(nn.Module):
    """A norm; computes in the dtype of its input."""

    def __init__(self, spec: LayerNorm, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=spec.eps)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., width) in and out."""
        norm = self.norm
        return functional.layer_norm(x, norm.normalized_shape, norm.weight.to(x), norm.bias.to(x), norm.eps)


class UnitLengthLayer(nn.Module):
    """Divides by the Euclidean norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., width) in and out."""
        return functional.normalize(x, dim=-1)


class StaticWeights(nn.Module):
    """A weight for each word of the vocabulary, by which queries are weighted without an encoder."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(vocabulary))


def build_output(output: CheckpointOutput | None, encoder: EncoderSpec) -> nn.Sequential:
    """The modules of an output's layers, in order; none for most outputs."""
    if output is None:
        return nn.Sequential()
    if isinstance(output, SparseVector):
        return nn.Sequential(*[StaticWeights(encoder.embedding.vocabulary)] * output.static_queries)
    width, modules = pooled_width(output, encoder), []
    for layer in output_layers(output):
        modules.append(_build(layer, width))
        width = output_width((layer,), width)
    return nn.Sequential(*modules)


def _build(layer: OutputLayer, width: int) -> nn.Module:
    match layer:
        case Dense():
            return DenseLayer(layer, width)
        case LayerNorm():
            return NormLayer(layer, width)
        case UnitLength():
            return UnitLengthLayer()
        case _:
            assert_never(layer)


def token_vectors(x_TD: Tensor, layers: nn.Sequential, *, normalize: bool) -> Tensor:
    """One vector per token, shape (T, E), in float32 at least."""
    e_TE: Tensor = layers(x_TD.to(torch.promote_types(x_TD.dtype, torch.float32)))
    return functional.normalize(e_TE, dim=-1) if normalize else e_TE


TOKENS_AT_ONCE = 256
"""Tokens whose logits over the vocabulary are in memory at once: 31 MB for 30,522 words in float32."""


def word_weights(x_ND: Tensor, logits: Callable[[Tensor], Tensor], output: SparseVector) -> Tensor:
    """The weight of each word for one text, shape (V,), in float32 at least.

    Args:
        x_ND: the text's last hidden states.
        logits: gives the logits over the vocabulary of some of them.
        output: how logits become weights.
    """
    pooled_V: Tensor | None = None
    for x_MD in torch.split(x_ND, TOKENS_AT_ONCE):
        w_MV = torch.relu(logits(x_MD).to(torch.promote_types(x_ND.dtype, torch.float32))).log1p()
        if output.activation == "log1p_log1p_relu":
            w_MV = w_MV.log1p()
        part_V = w_MV.amax(0) if output.pooling == "max" else w_MV.sum(0)
        if pooled_V is None:
            pooled_V = part_V
        else:
            pooled_V = torch.maximum(pooled_V, part_V) if output.pooling == "max" else pooled_V + part_V
    assert pooled_V is not None
    return pooled_V
