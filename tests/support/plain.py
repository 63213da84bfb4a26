"""The encoder computed again in float64 from the formulas, one text at a time, in numpy.

Nothing of `unmask` is used but the spec and the weights, so that it can be wrong only by itself.
"""

import math

import numpy as np
from scipy.special import erf

from unmask.model.spec import (
    Alibi,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    Rotary,
    SoftmaxAttention,
    Window,
)

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def encode(spec: EncoderSpec, weights: dict[str, np.ndarray], ids, segments) -> list[np.ndarray]:
    """Hidden states after the embedding and after each layer, (N, D) each; the last is normalised."""
    embedding = spec.embedding
    x = weights["embedding.words.weight"][ids]
    if embedding.segments:
        x = x + weights["embedding.segments.weight"][segments]
    if embedding.positions:
        x = x + weights["embedding.positions.weight"][: len(ids)]
    x = norm(x, embedding.norm, weights, "embedding.norm")
    if embedding.projection:
        x = linear(x, weights, "embedding.projection")
    states = [x]
    for layer, group in zip(spec.layers, spec.sharing or range(len(spec.layers)), strict=True):
        at = f"layers.{group}."
        if layer.norm_first:
            inner = norm(x, layer.norm, weights, at + "attention_norm") if layer.attention_norm else x
            x = x + attention(inner, layer.mixer, weights, at)
            x = x + feedforward(norm(x, layer.norm, weights, at + "feedforward_norm"), layer, weights, at)
        else:
            x = norm(x + attention(x, layer.mixer, weights, at), layer.norm, weights, at + "attention_norm")
            x = norm(x + feedforward(x, layer, weights, at), layer.norm, weights, at + "feedforward_norm")
        states.append(x)
    if spec.final_norm:
        states[-1] = norm(x, spec.final_norm, weights, "final_norm")
    return states


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)


def norm(x, kind, weights, name):
    if isinstance(kind, LayerNorm):
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + kind.eps)
    return x * weights[name + ".weight"] + weights.get(name + ".bias", 0.0)


def feedforward(x, layer: Layer, weights, at):
    inner = linear(x, weights, at + "feedforward.inner")
    activation = ACTIVATIONS[layer.feedforward.activation]
    if isinstance(layer.feedforward, GatedFeedForward):
        half = inner.shape[-1] // 2
        mixed = activation(inner[:, :half]) * inner[:, half:]
    else:
        mixed = activation(inner)
    return linear(mixed, weights, at + "feedforward.outer")


def attention(x, mixer: SoftmaxAttention, weights, at):
    length, heads, width = len(x), mixer.heads, mixer.head_width
    qkv = linear(x, weights, at + "attention.qkv").reshape(length, 3, heads, width)
    mixed = np.zeros((length, heads, width))
    for head in range(heads):
        q, k, v = qkv[:, 0, head], qkv[:, 1, head], qkv[:, 2, head]
        if isinstance(mixer.position, Rotary):
            q, k = rotate(q, mixer.position.theta), rotate(k, mixer.position.theta)
        for i in range(length):
            logits = np.array([score(q[i], k[j], i, j, head, mixer) for j in range(length)])
            p = np.exp(logits - logits.max())
            mixed[i, head] = (p / p.sum()) @ v
    return linear(mixed.reshape(length, -1), weights, at + "attention.out")


def score(q, k, i, j, head, mixer: SoftmaxAttention) -> float:
    if isinstance(mixer.reach, Window) and abs(i - j) > mixer.reach.radius:
        return -math.inf
    bias = -press_slopes(mixer.heads)[head] * abs(i - j) if isinstance(mixer.position, Alibi) else 0.0
    return float(q @ k / math.sqrt(len(q)) + bias)


def press_slopes(heads: int) -> list[float]:
    """The published rule, written as its authors do: recursion on the nearest power of two."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    nearest = 2 ** math.floor(math.log2(heads))
    return press_slopes(nearest) + press_slopes(2 * nearest)[0::2][: heads - nearest]


def rotate(x, theta):
    """Pairs of features as complex numbers, turned by position times frequency."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.arange(len(x))[:, None] * frequency)
    return np.concatenate([turned.real, turned.imag], axis=-1)
