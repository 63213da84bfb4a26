"""Attention of one text as whole maps in float64, from the formulas, the spec and the weights alone."""

import math

import numpy as np

from tests.support import plain
from unmask.spec import Disentangled, LinearAttention, Rotary, SlidingWindowGlobal
from unmask.text import Encoding


def text_of(ids, *, special=(), surfaces=None) -> Encoding:
    """An encoding of these ids; ``special`` lists places, ``surfaces`` gives each token's characters."""
    length = len(ids)
    surfaces = surfaces or ["w"] * length
    ends = np.cumsum([len(surface) for surface in surfaces])
    spans = np.stack([ends - [len(surface) for surface in surfaces], ends], axis=1)
    return Encoding.of_arrays(
        text="".join(surfaces),
        ids=np.asarray(ids, dtype=np.int64),
        token_type_ids=np.zeros(length, dtype=np.int64),
        offsets=spans,
        special=np.isin(np.arange(length), special),
        sequence_ids=np.where(np.isin(np.arange(length), special), -1, 0),
        pieces=tuple(surfaces),
    )


def random_text(length: int, seed: int = 0) -> Encoding:
    """Random ids, first and last special, every fifth token a comma, every seventh part of a word."""
    ids = np.random.default_rng(seed).integers(0, 97, length)
    surfaces = ["," if i % 5 == 3 else "x." if i % 7 == 2 else "w" for i in range(length)]
    return text_of(ids, special=(0, length - 1), surfaces=surfaces)


def weights_of(encoder) -> dict[str, np.ndarray]:
    """Every tensor in float64."""
    return {name: x.detach().double().numpy() for name, x in encoder.state_dict().items()}


def maps(encoder, encoding, marks=None) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each layer: attention (H, N, N), norms of what key j gives i (H, N, N), keys allowed (H, N)."""
    spec, weights = encoder.spec, weights_of(encoder)
    marks = np.zeros(len(encoding), dtype=bool) if marks is None else marks
    states = plain.encode(spec, weights, encoding.ids, encoding.token_type_ids, marks)
    found = []
    for number, (layer, group) in enumerate(zip(spec.layers, spec.weights_of_layer, strict=True)):
        at = f"layers.{group}."
        x, own = plain.read_by_attention(states[number], layer, weights, at)
        make = kernel_maps if isinstance(layer.mixer, LinearAttention) else softmax_maps
        found.append(make(x, layer.mixer, own, at, marks))
    return found


def softmax_maps(x, mixer, weights, at, marks):
    length, heads, width = len(x), mixer.heads, mixer.head_width
    seen = plain.times_seen(mixer.pattern, length, heads, marks)
    p = np.zeros((heads, length, length))
    norms = np.zeros_like(p)
    keys = (seen > 0).sum(-1)
    for head in range(heads):
        q, k, v = plain.projected(x, mixer, weights, at, head)
        if isinstance(mixer.position, Rotary):
            q, k = plain.rotate(q, mixer.position), plain.rotate(k, mixer.position)
        out = weights[at + "attention.out.weight"][:, head * width : (head + 1) * width]
        norms[head] = np.linalg.norm(v @ out.T, axis=-1)
        for i in range(length):
            logits = logits_of(q, k, i, head, mixer, weights, at)
            p[head, i] = plain.shares(logits, seen[head, i], plain.sink_of(weights, at, head))
    if isinstance(mixer.pattern, SlidingWindowGlobal) and mixer.pattern.own_projections:
        own = plain.linear(x, weights, at + "attention.globals.qkv").reshape(length, 3, heads, width)
        for i in np.flatnonzero(marks):
            for head in range(heads):
                row = np.exp(own[:, 1, head] @ own[i, 0, head] / math.sqrt(width))
                p[head, i] = row / row.sum()
                out = weights[at + "attention.out.weight"][:, head * width : (head + 1) * width]
                norms[head, i] = np.linalg.norm(own[:, 2, head] @ out.T, axis=-1)
    return p, norms, keys


def logits_of(q, k, i, head, mixer, weights, at):
    """Scores of query i with every key, before what may be seen is asked."""
    logits = np.array([plain.score(q[i], k[j], i, j, head, mixer, weights) for j in range(len(k))])
    if isinstance(mixer.position, Disentangled):
        apart = [plain.distance_score(q[i], k[j], i - j, head, mixer, weights, at) for j in range(len(k))]
        width = mixer.head_width
        logits = (logits * math.sqrt(width) + apart) / math.sqrt(width * mixer.position.term_count)
    return logits


def kernel_maps(x, mixer, weights, at, marks):
    del marks
    length, heads, width = len(x), mixer.heads, mixer.head_width
    qkv = plain.linear(x, weights, at + "attention.qkv").reshape(length, 3, heads, width)
    p = np.zeros((heads, length, length))
    norms = np.zeros_like(p)
    for head in range(heads):
        q, k = qkv[:, 0, head], qkv[:, 1, head]
        if mixer.feature_map == "elu+1":
            phi_q, phi_k = (np.where(y > 0, y + 1, np.exp(y)) for y in (q, k))
        else:
            w = weights[at + "attention.projection"]
            phi_q, phi_k = plain.favor_exponents(q, w), plain.favor_exponents(k, w)
            phi_q = np.exp(phi_q - phi_q.max(-1, keepdims=True)) + mixer.eps
            phi_k = np.exp(phi_k - phi_k.max()) + mixer.eps
        row = phi_q @ phi_k.T
        p[head] = row / row.sum(-1, keepdims=True)
        out = weights[at + "attention.out.weight"][:, head * width : (head + 1) * width]
        norms[head] = np.linalg.norm(qkv[:, 2, head] @ out.T, axis=-1)
    return p, norms, np.full((heads, length), length)
