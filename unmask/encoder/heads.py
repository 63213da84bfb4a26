"""The heads of the encoder: hidden states in, vectors or logits out.

Layers after pooling or on each token's state, pooling to one vector per sequence, and the heads of published
checkpoints.
"""

from collections.abc import Callable
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.parts import ACTIVATIONS, build_norm
from unmask.errors import InvalidRequest
from unmask.kernels.dropout import Dropout
from unmask.spec import (
    CheckpointOutput,
    Classifier,
    Dense,
    DoubleTransform,
    EncoderSpec,
    Head,
    LayerNorm,
    MaskedLM,
    OutputLayer,
    PooledVector,
    Pooler,
    PoolingMode,
    ResidualTransform,
    SparseVector,
    Transform,
    UnitLength,
)
from unmask.spec.embedding_head import output_layers, output_width, pooled_width
from unmask.text.batch import SequenceLayout, check_unpooled


class PoolerLayer(nn.Module):
    """Dense layer and activation on each sequence's first token (Devlin et al. 2019)."""

    def __init__(self, spec: Pooler, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T, D) in, (S, D) out."""
        return self.activation(self.dense(pool(x_TD, layout, "cls")))


def pool(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode) -> Tensor:
    """One vector per sequence, shape (S, D): see `PoolingMode`. Special tokens are included.

    Half-precision states are pooled in float32; the result has the states' dtype.
    """
    return _pool_exactly(x_TD, layout, mode).to(x_TD.dtype)


def _pool_exactly(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode, skipped: int = 0) -> Tensor:
    """`pool` in float32, or in float64 for float64, without the first ``skipped`` tokens of each sequence."""
    exact = torch.promote_types(x_TD.dtype, torch.float32)
    if mode == "last":
        return x_TD[torch.from_numpy(layout.offsets[1:] - 1).to(x_TD.device)].to(exact)
    if mode == "cls":
        return x_TD[torch.from_numpy(layout.offsets[:-1] + skipped).to(x_TD.device)].to(exact)
    if mode == "weighted_mean":
        places_T = torch.from_numpy(layout.positions_T + 1).to(x_TD.device, exact)
        places_T = torch.where(places_T > skipped, places_T, 0)
        lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
        sums_SD = torch.segment_reduce(x_TD.to(exact) * places_T[:, None], "sum", lengths=lengths_S)
        return sums_SD / torch.segment_reduce(places_T, "sum", lengths=lengths_S)[:, None]
    if skipped:
        x_TD = x_TD[torch.from_numpy(layout.positions_T >= skipped).to(x_TD.device)]
        layout = SequenceLayout.of_lengths(layout.lengths - skipped)
    if mode == "mean" and layout.sequence_count == 1 and x_TD.device.type == "cpu":
        return x_TD.to(exact).mean(0, keepdim=True)
    lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
    if mode == "max":
        return torch.segment_reduce(x_TD.to(exact), "max", lengths=lengths_S)
    sums_SD = torch.segment_reduce(x_TD.to(exact), "sum", lengths=lengths_S)
    counts_S1 = lengths_S[:, None].to(sums_SD.dtype)
    match mode:
        case "mean":
            divisors_S1 = counts_S1
        case "mean_sqrt_len":
            divisors_S1 = counts_S1.sqrt()
        case _:
            assert_never(mode)
    return sums_SD / divisors_S1


def pool_padded(x_BND: Tensor, present_BN: Tensor, mode: PoolingMode) -> Tensor:
    """One vector per text, (B, D); `pool` over padded texts, for graphs that are exported."""
    weight_BN1 = present_BN[..., None].to(x_BND.dtype)
    counts_B1 = weight_BN1.sum(1)
    match mode:
        case "cls":
            return x_BND[:, 0]
        case "last":
            places_B11 = (present_BN.sum(1) - 1)[:, None, None]
            return x_BND.gather(1, places_B11.expand(-1, 1, x_BND.shape[-1]))[:, 0]
        case "max":
            return x_BND.masked_fill(weight_BN1 == 0, torch.finfo(x_BND.dtype).min).amax(1)
        case "weighted_mean":
            weight_BN1 = weight_BN1 * torch.arange(1, x_BND.shape[1] + 1)[:, None]
            return (x_BND * weight_BN1).sum(1) / weight_BN1.sum(1)
        case "mean":
            return (x_BND * weight_BN1).sum(1) / counts_B1
        case "mean_sqrt_len":
            return (x_BND * weight_BN1).sum(1) / counts_B1.sqrt()
        case _:
            assert_never(mode)


def embed(
    x_TD: Tensor,
    layout: SequenceLayout,
    head: PooledVector,
    layers: nn.Sequential | None = None,
    *,
    skipped: int = 0,
) -> Tensor:
    """Sentence embeddings as the checkpoint defines them, shape (S, E), in float32 at least.

    Args:
        x_TD: the last hidden states.
        layout: where each sequence begins.
        head: how to pool them.
        layers: the modules of its ``projections``; None if it has none.
        skipped: how many tokens at the beginning of each sequence are not pooled, because they are a prompt.

    Raises:
        InvalidRequest: its dense layers are not given, or a sequence has no token to pool.
    """
    layer_count = 0 if layers is None else len(layers)
    if any(
        not isinstance(layer, UnitLength) for layer in head.projections[layer_count:]
    ) or layer_count > len(head.projections):
        raise InvalidRequest(
            f"the output has {len(head.projections)} layers after pooling and the encoder has {layer_count}; "
            "use the output of its own checkpoint"
        )
    check_unpooled(layout, skipped)
    e_SE = torch.cat([_pool_exactly(x_TD, layout, mode, skipped) for mode in head.pooling], dim=-1)
    e_SE = e_SE if layers is None else layers(e_SE)
    for _ in head.projections[layer_count:]:
        e_SE = torch.nn.functional.normalize(e_SE, dim=-1)
    e_SE = e_SE[:, : head.dimensions]
    return torch.nn.functional.normalize(e_SE, dim=-1) if head.normalize else e_SE


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


class TransformLayer(nn.Module):
    """Dense layer, activation, norm."""

    def __init__(self, spec: Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, spec.width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = build_norm(spec.norm, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in, (..., width) out."""
        y: Tensor = self.norm(self.activation(self.dense(x)))
        return y


class DoubleTransformLayer(nn.Module):
    """Two dense layers, each with the activation."""

    def __init__(self, spec: DoubleTransform, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, spec.inner, bias=spec.bias)
        self.outer = nn.Linear(spec.inner, spec.width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in, (..., width) out."""
        y: Tensor = self.activation(self.outer(self.activation(self.inner(x))))
        return y


class ResidualTransformLayer(nn.Module):
    """A feed-forward part with its residual and norm."""

    def __init__(self, spec: ResidualTransform, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, spec.width)
        self.activation = ACTIVATIONS[spec.activation]
        self.outer = nn.Linear(spec.width, width)
        self.norm = build_norm(spec.norm, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in and out."""
        y: Tensor = self.norm(x + self.outer(self.activation(self.inner(x))))
        return y


class MaskedLMHead(nn.Module):
    """Logits over the vocabulary (Devlin et al. 2019)."""

    def __init__(self, spec: MaskedLM, encoder: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        transform, words = spec.transform, encoder.embedding
        self.transform: TransformLayer | DoubleTransformLayer | None = None
        if isinstance(transform, DoubleTransform):
            self.transform = DoubleTransformLayer(transform, encoder.state_width)
        elif transform is not None:
            self.transform = TransformLayer(transform, encoder.state_width)
        width = transform.width if transform else encoder.state_width
        stored = width - spec.beside
        self.decoder = None if spec.tied else nn.Linear(stored, words.vocabulary, bias=spec.own_bias)
        self.beside = nn.Linear(words.vocabulary, spec.beside, bias=False) if spec.beside else None
        """Holds the transpose of its part of the matrix, as checkpoints do; it is never called."""
        self.bias = nn.Parameter(torch.zeros(words.vocabulary)) if spec.bias else None

    def forward(self, x_MD: Tensor, words_VE: Tensor) -> Tensor:
        """Shape (M, D) in, (M, V) out; ``words_VE`` is the word embedding, used where weights are tied."""
        return functional.linear(*self.factors(x_MD, words_VE))

    def factors(self, x_MD: Tensor, words_VE: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The factors of the logits: states (M, E), a vector per word (V, E), and a bias (V,) or None."""
        x_ME = x_MD if self.transform is None else self.transform(x_MD)
        weight_VE = words_VE if self.decoder is None else self.decoder.weight
        if self.beside is not None:
            weight_VE = torch.cat((weight_VE, self.beside.weight.T), dim=1)
        own_bias = None if self.decoder is None or not self.spec.own_bias else self.decoder.bias
        return x_ME, weight_VE, self.bias if own_bias is None else own_bias


class ClassificationHead(nn.Module):
    """Logits over classes for each state."""

    def __init__(self, spec: Classifier, width: int) -> None:
        super().__init__()
        self.spec = spec
        transform = spec.transform
        self.norm = build_norm(spec.input_norm, width)
        self.transform: TransformLayer | ResidualTransformLayer | None = None
        if isinstance(transform, ResidualTransform):
            self.transform = ResidualTransformLayer(transform, width)
        elif transform is not None:
            self.transform = TransformLayer(transform, width)
            width = transform.width
        self.dropout = Dropout(0.0)
        """Before the last layer; its rate is set by whoever trains the head."""
        self.out = nn.Linear(width, spec.classes, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in, (..., C) out."""
        x = self.norm(functional.normalize(x, dim=-1) if self.spec.normalize else x)
        y: Tensor = self.out(self.dropout(x if self.transform is None else self.transform(x)))
        return y


def build_head(spec: Head, encoder: EncoderSpec) -> nn.Module:
    """The module that ``spec`` describes, on an encoder."""
    match spec:
        case MaskedLM():
            return MaskedLMHead(spec, encoder)
        case Classifier():
            return ClassificationHead(spec, encoder.state_width)
        case _:
            assert_never(spec)
