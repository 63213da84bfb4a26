"""The encoder computed again in float64 from the formulas, one text at a time, in numpy.

Nothing of `unmask` is used but the spec and the weights, so that it can be wrong only by itself.
"""

import math

import numpy as np
from scipy.special import erf

from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    Disentangled,
    EncoderSpec,
    ExpertFeedForward,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LinearAttention,
    NoNorm,
    PlainFeedForward,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    StackedFeedForward,
)

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def encode(spec: EncoderSpec, weights: dict[str, np.ndarray], ids, segments, marks) -> list[np.ndarray]:
    """Hidden states after the embedding and after each layer, (N, D) each; the last is normalized.

    ``marks`` says which tokens are global.
    """
    embedding = spec.embedding
    x = embedding.scale * weights["embedding.words.weight"][ids]
    if embedding.token_dropout:
        masked = np.array(ids) == embedding.token_dropout.mask_id
        x = np.where(
            masked[:, None], 0, x * (1 - embedding.token_dropout.rate) / max(1 - masked.mean(), 1e-9)
        )
    alone = embedding.projection is not None and embedding.projection.words_alone
    if alone:
        x = linear(with_neighbors(x, embedding.projection.neighbors), weights, "embedding.projection")
    if embedding.segments:
        x = x + weights["embedding.segments.weight"][segments]
    if embedding.tasks:
        x = x + weights["embedding.tasks.weight"][0]
    if embedding.positions:
        offset, seen = embedding.positions.offset, 0
        rows = []
        for token in ids:
            skipped = offset > 0 and int(token) == offset - 1
            rows.append(offset - 1 if skipped else offset + seen)
            seen += not skipped
        x = x + weights["embedding.positions.weight"][rows]
    early = embedding.projection is not None and embedding.projection.before_norm and not alone
    if early:
        x = linear(x, weights, "embedding.projection")
    x = norm(x, embedding.norm, weights, "embedding.norm")
    if embedding.projection and not early and not alone:
        x = linear(x, weights, "embedding.projection")
    states = [x]
    for layer, group in zip(spec.layers, spec.sharing or range(len(spec.layers)), strict=True):
        x = after_layer(x, layer, weights, f"layers.{group}.", marks)
        x = gated_and_multiplied(x, states, spec, weights, f"layers.{group}.")
        if spec.convolution and len(states) == 1:
            added = convolution(states[0], spec, weights)
            x = norm(x + added, spec.convolution.norm, weights, "convolution.norm")
        states.append(x)
    if spec.final_norm:
        states[-1] = norm(x, spec.final_norm, weights, "final_norm")
    return [*states[:-1], linear(states[-1], weights, "final_map") if spec.output_width else states[-1]]


def gated_and_multiplied(x, states, spec: EncoderSpec, weights, at):
    """The end of the layer that follows these states in EmbeddingGemma 2; the first is the embedding."""
    layer = spec.layers[len(states) - 1]
    if layer.gate:
        x = x + through_gate(x, states, spec, weights, at + "gate.")
    return x * weights[at + "factor"] if layer.factor else x


def through_gate(x, states, spec: EncoderSpec, weights, at):
    layer = spec.layers[len(states) - 1]
    every = linear(states[0], weights, "layer_inputs.map") / math.sqrt(spec.width)
    read = np.split(every, len(spec.layers), axis=-1)[len(states) - 1]
    read = norm(read, layer.norm, weights, "layer_inputs.norm")
    inner = ACTIVATIONS[layer.gate.activation](linear(x, weights, at + "inner"))
    return norm(linear(inner * read, weights, at + "outer"), layer.norm, weights, at + "norm")


def with_neighbors(x, far: int):
    """Each row between those after it, the farthest first, and those before it; zeros beyond the ends."""
    rows = []
    for i in range(len(x)):
        near = [x[i + apart] if 0 <= i + apart < len(x) else 0 * x[0] for apart in range(far, -far - 1, -1)]
        rows.append(np.concatenate(near))
    return np.array(rows)


def read_by_attention(x, layer: Layer, weights, at):
    """What attention projects to queries, keys and values, and the weights by which it does."""
    if layer.norm_first and layer.attention_norm:
        x = norm(x, layer.norm, weights, at + "attention_norm")
    if layer.bottleneck and layer.bottleneck.attention == "narrow":
        inner = linear(x, weights, at + "bottleneck.inner")
        return norm(inner, layer.norm, weights, at + "bottleneck.inner_norm"), weights
    if layer.bottleneck and layer.bottleneck.attention == "shared":
        qkv = at + "attention.qkv"
        both = norm(linear(x, weights, qkv + ".shared"), layer.norm, weights, qkv + ".shared_norm")
        products = linear(both, weights, qkv + ".queries_keys"), linear(x, weights, qkv + ".values")
        x = np.concatenate(products, axis=-1)
        weights = {**weights, qkv + ".weight": np.eye(x.shape[-1])}
    return x, weights


def through_bottleneck(x, layer: Layer, weights, at, marks):
    """MobileBERT's layer as its authors write it: each network with its own residual and norm."""

    def normed(y, name):
        return norm(y, layer.norm, weights, at + name)

    narrow = normed(linear(x, weights, at + "bottleneck.inner"), "bottleneck.inner_norm")
    read, weights = read_by_attention(x, layer, weights, at)
    y = normed(narrow + attention(read, layer.mixer, weights, at, marks), "attention_norm")
    y = normed(y + feedforward(y, layer, weights, at), "feedforward_norm")
    return normed(x + linear(y, weights, at + "bottleneck.outer"), "bottleneck.outer_norm")


def stacked(x, network: StackedFeedForward, weights, at):
    """The last network on what those before it leave, and what these have changed."""
    y = x
    for number in range(network.count - 1):
        y = norm(
            y + plain_network(y, network.network, weights, f"{at}earlier.{number}."),
            network.norm,
            weights,
            f"{at}earlier.{number}.norm",
        )
    return plain_network(y, network.network, weights, at) + y - x


def plain_network(x, network: PlainFeedForward, weights, at):
    inner = ACTIVATIONS[network.activation](grouped(x, weights, at + "inner", network.groups))
    return grouped(inner, weights, at + "outer", network.groups)


def after_layer(x, layer: Layer, weights, at, marks):
    if layer.bottleneck:
        return through_bottleneck(x, layer, weights, at, marks)

    def normed(y, name):
        return norm(y, layer.norm, weights, f"{at}{name}_norm")

    if layer.norm_first:
        added = attention(
            normed(x, "attention") if layer.attention_norm else x, layer.mixer, weights, at, marks
        )
        x = x + layer.output_scale * (normed(added, "attention_output") if layer.output_norms else added)
        added = feedforward(normed(x, "feedforward"), layer, weights, at)
        return x + layer.output_scale * (normed(added, "feedforward_output") if layer.output_norms else added)
    mixed = attention(x, layer.mixer, weights, at, marks)
    if layer.attention_sum_norm:
        mixed = normed(x + mixed, "attention_output")
    x = normed(x + mixed, "attention")
    return normed(x + feedforward(x, layer, weights, at), "feedforward")


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)


def norm(x, kind, weights, name):
    if kind is None:
        return x
    scale = weights[name + ".weight"] + (1 if getattr(kind, "one_plus", False) else 0)
    if isinstance(kind, LayerNorm):
        x = x - x.mean(-1, keepdims=True)
    if isinstance(kind, NoNorm):
        return x * scale + weights[name + ".bias"]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + kind.eps)
    return x * scale + weights.get(name + ".bias", 0.0)


def feedforward(x, layer: Layer, weights, at):
    if isinstance(layer.feedforward, ExpertFeedForward):
        return experts(x, layer.feedforward, weights, at + "feedforward.")
    if isinstance(layer.feedforward, StackedFeedForward):
        return stacked(x, layer.feedforward, weights, at + "feedforward.")
    groups = getattr(layer.feedforward, "groups", 1)
    inner = grouped(x, weights, at + "feedforward.inner", groups)
    activation = ACTIVATIONS[layer.feedforward.activation]
    if isinstance(layer.feedforward, GatedFeedForward):
        half = inner.shape[-1] // 2
        mixed = activation(inner[:, :half]) * inner[:, half:]
    else:
        mixed = activation(inner)
    return grouped(mixed, weights, at + "feedforward.outer", groups)


def grouped(x, weights, name, groups: int):
    """A linear map of which every group reads its own features; their matrices are read by columns."""
    if groups == 1:
        return linear(x, weights, name)
    parts = np.split(x, groups, axis=-1)
    parts = [part @ weights[name + ".weight"][g] for g, part in enumerate(parts)]
    return np.concatenate(parts, axis=-1) + weights.get(name + ".bias", 0.0)


def spans(x, queries, mixer: SoftmaxAttention, weights, at):
    """ConvBERT's convolutions, token by token and tap by tap; zeros beyond the ends."""
    kernel, length, heads = mixer.span_convolution.kernel, len(x), mixer.heads
    taps = range(-(kernel // 2), kernel // 2 + 1)
    values = linear(x, weights, at + "values").reshape(length, heads, -1)
    out = np.zeros_like(values)
    for i in range(length):
        near = np.zeros(x.shape[-1])
        for tap in taps:
            if 0 <= i + tap < length:
                near += weights[at + "depthwise.weight"][:, 0, tap + kernel // 2] * x[i + tap]
        key = weights[at + "pointwise.weight"][:, :, 0] @ near + weights[at + "bias"][:, 0]
        query = np.concatenate([queries[head][i] for head in range(heads)])
        logits = linear(key * query, weights, at + "weights").reshape(heads, kernel)
        for head in range(heads):
            p = np.exp(logits[head] - logits[head].max())
            for tap in taps:
                if 0 <= i + tap < length:
                    out[i, head] += p[tap + kernel // 2] / p.sum() * values[i + tap, head]
    return out


def experts(x, network: ExpertFeedForward, weights, at):
    scores = np.exp(linear(x, weights, at + "router"))
    parts = scores / scores.sum(-1, keepdims=True)
    inner, outer, inner_bias, outer_bias = (
        weights.get(at + f"experts.{name}", np.zeros(network.experts)).reshape(network.experts, -1)
        for name in ("inner", "outer", "inner_bias", "outer_bias")
    )
    inner, outer = (matrix.reshape(network.experts, -1, x.shape[-1]) for matrix in (inner, outer))
    out = np.zeros_like(x)
    for token, row in enumerate(x):
        chosen = np.argsort(-parts[token])[: network.chosen]
        whole = parts[token, chosen].sum() if network.normalize else 1.0
        for one in chosen:
            h = inner[one] @ row + inner_bias[one]
            added = gated(h, network.gate) if network.gate else ACTIVATIONS[network.activation](h)
            out[token] += parts[token, one] / whole * (added @ outer[one] + outer_bias[one])
    return out + weights.get(at + "experts.bias", 0.0)


def gated(h, gate):
    """gpt-oss's SwiGLU: gate features first, then those that they multiply."""
    half = len(h) // 2
    a, b = np.minimum(h[:half], gate.limit), np.clip(h[half:], -gate.limit, gate.limit)
    return a / (1 + np.exp(-gate.slope * a)) * (b + 1)


def attention(x, mixer: SoftmaxAttention | LinearAttention, weights, at, marks):
    if isinstance(mixer, LinearAttention):
        return linear_attention(x, mixer, weights, at)
    length, heads, width = len(x), mixer.heads, mixer.head_width
    heard = [projected(x, mixer, weights, at, head) for head in range(heads)]
    seen = times_seen(mixer.pattern, length, heads, marks)
    mixed = np.zeros((length, heads, width))
    for head in range(heads):
        q, k, v = heard[head]
        if isinstance(mixer.position, Rotary):
            q, k = rotate(q, mixer.position), rotate(k, mixer.position)
        for i in range(length):
            logits = np.array([score(q[i], k[j], i, j, head, mixer, weights) for j in range(length)])
            if isinstance(mixer.position, Disentangled):
                apart = [distance_score(q[i], k[j], i - j, head, mixer, weights, at) for j in range(length)]
                logits = (logits * math.sqrt(width) + apart) / math.sqrt(width * mixer.position.term_count)
            mixed[i, head] = shares(logits, seen[head, i], sink_of(weights, at, head)) @ v
    if isinstance(mixer.pattern, SlidingWindowGlobal) and mixer.pattern.own_projections:
        own = linear(x, weights, at + "attention.globals.qkv").reshape(length, 3, heads, width)
        for i in np.flatnonzero(marks):
            for head in range(heads):
                p = np.exp(own[:, 1, head] @ own[i, 0, head] / math.sqrt(width))
                mixed[i, head] = (p / p.sum()) @ own[:, 2, head]
    mixed = mixed.reshape(length, -1)
    if mixer.span_convolution:
        beside = spans(x, [q for q, _, _ in heard], mixer, weights, at + "attention.spans.")
        mixed = np.concatenate([mixed, beside.reshape(length, -1)], axis=-1)
    return linear(mixed, weights, at + "attention.out")


def sink_of(weights, at, head: int) -> float:
    """The score of a head's attention sink; minus infinity for none."""
    sinks = weights.get(at + "attention.sinks")
    return -math.inf if sinks is None else float(sinks[head])


def shares(logits, seen, sink: float):
    """The softmax over the keys that may be seen, each as often as it counts, and the sink; without it."""
    p = np.append(seen, 1) * np.exp(np.append(logits, sink) - max(logits.max(), sink))
    return p[:-1] / p.sum()


def projected(x, mixer: SoftmaxAttention, weights, at, head: int):
    """Queries, keys and values of one head, (N, K) each, not yet rotated."""
    whole, width = linear(x, weights, at + "attention.qkv"), mixer.head_width
    shared = mixer.key_value_heads or mixer.heads
    own = head * shared // mixer.heads
    normed = mixer.query_key_norm
    found = []
    if normed is not None and normed.over == "all":
        ends = np.cumsum([0, mixer.heads * width, shared * width])
        for name, first, end in zip(("query", "key"), ends, ends[1:], strict=False):
            whole[:, first:end] = norm(
                whole[:, first:end], normed.norm, weights, f"{at}attention.{name}_norm"
            )
    for name, before, number in (
        ("query", 0, head),
        ("key", mixer.heads, own),
        ("value", mixer.heads + shared, own),
    ):
        part = whole[:, (before + number) * width :][:, :width]
        bias = weights.get(at + f"attention.{name}_bias")
        part = part if bias is None else part + bias[number * width :][:width]
        if normed is not None and normed.over == "head" and name != "value":
            part = norm(part, normed.norm, weights, f"{at}attention.{name}_norm")
        if normed is not None and normed.values and name == "value":
            part = part / np.sqrt((part * part).mean(-1, keepdims=True) + normed.norm.eps)
        found.append(part)
    return found


def convolution(x, spec: EncoderSpec, weights):
    """Token by token and tap by tap, zeros beyond the ends."""
    kernel = weights["convolution.inner.weight"]
    radius = kernel.shape[-1] // 2
    out = np.zeros_like(x) + weights["convolution.inner.bias"]
    for i in range(len(x)):
        for hook in range(-radius, radius + 1):
            if 0 <= i + hook < len(x):
                out[i] += kernel[:, :, hook + radius] @ x[i + hook]
    return ACTIVATIONS[spec.convolution.activation](out)


def distance_score(q, k, behind: int, head: int, mixer: SoftmaxAttention, weights, at) -> float:
    """DeBERTa's products with the row of one distance, query minus key, not yet divided."""
    position, part = mixer.position, slice(head * len(q), (head + 1) * len(q))
    row = weights["distances.table.weight"][distance_row(behind, position)]
    if position.table_norm:
        row = norm(row, position.table_norm, weights, "distances.norm")
    if position.shared_projections:
        as_query, as_key = np.split(linear(row, weights, at + "attention.qkv"), 3)[:2]
    else:
        as_query, as_key = (linear(row, weights, at + f"attention.distances.{n}") for n in ("query", "key"))
    return float(q @ as_key[part] + k @ as_query[part])


def distance_row(behind: int, position: Disentangled) -> int:
    """From the papers and Microsoft's code: cut, merged by logarithm, shifted to begin at 0."""
    span, sign = position.buckets or position.max_distance, -1 if behind < 0 else 1
    if position.clamped:
        behind = max(1 - position.max_distance, min(behind, position.max_distance - 1))
    half = position.buckets // 2
    if position.buckets and abs(behind) > half:
        share = math.log(abs(behind) / half) / math.log((position.max_distance - 1) / half)
        behind = sign * (half + math.ceil(share * (half - 1)))
    return max(0, min(behind + span, 2 * span - 1))


def times_seen(pattern, length: int, heads: int, marks) -> np.ndarray:
    """How often each query counts each key, (H, N, N)."""
    i, j = np.indices((length, length))
    window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
    seen = np.ones((heads, length, length), dtype=np.int64)
    if isinstance(pattern, CausalAttention):
        seen *= j <= i
    if isinstance(window, SlidingWindow):
        far = np.abs(i - j)
        seen *= (far <= window.radius * window.dilation) & (far % window.dilation == 0)
    if isinstance(pattern, SlidingWindowGlobal):
        seen[:, marks[i] | marks[j]] = 1
    if isinstance(pattern, BlockSparse) and length > (5 + 2 * pattern.random_blocks) * pattern.block:
        blocks = math.ceil(length / pattern.block)
        drawn = draw_blocks(pattern, blocks, heads)
        for head in range(heads):
            for b in range(1, blocks - 1):
                if b == 1:
                    listed = [0, 1, 2, blocks - 1]
                elif b == blocks - 2:
                    listed = [0, blocks - 3, blocks - 2, blocks - 1]
                else:
                    listed = [0, b - 1, b, b + 1, blocks - 1]
                listed += drawn[head][b]
                table = np.array([listed.count(c) for c in range(blocks)])
                rows = slice(b * pattern.block, (b + 1) * pattern.block)
                seen[head, rows] = table[np.arange(length) // pattern.block]
    return seen


def draw_blocks(pattern: BlockSparse, blocks: int, heads: int):
    """For each head and row of blocks, the random ones; the authors' rule for lengths without a plan."""
    drawn = [[[0] * pattern.random_blocks for _ in range(blocks)] for _ in range(heads)]
    if pattern.seed is None:
        return drawn
    state = np.random.RandomState(pattern.seed)
    first_part = 2 * pattern.random_blocks + 5
    for b in range(1, blocks):
        for head in range(heads):
            illegal = [b - 1, b, b + 1, 0, first_part - 1]
            illegal += [first_part - 2] if b == 1 else [1] if b == first_part - 2 else []
            legal = [int(c) for c in state.permutation(first_part) if c not in illegal]
            drawn[head][b] = legal[: pattern.random_blocks]
    return drawn


def linear_attention(x, mixer: LinearAttention, weights, at):
    """From the papers' formulas as a map of N x N weights, which is what their sums are equal to."""
    length, heads, width = len(x), mixer.heads, mixer.head_width
    qkv = linear(x, weights, at + "attention.qkv").reshape(length, 3, heads, width)
    mixed = np.zeros((length, heads, width))
    for head in range(heads):
        q, k, v = qkv[:, 0, head], qkv[:, 1, head], qkv[:, 2, head]
        if mixer.feature_map == "elu+1":
            phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
            in_sum = mixer.eps
        else:
            w = weights[at + "attention.projection"]
            phi_q, phi_k = favor_exponents(q, w), favor_exponents(k, w)
            phi_q = np.stack([np.exp(row - row.max()) + mixer.eps for row in phi_q])
            phi_k = np.exp(phi_k - phi_k.max()) + mixer.eps
            in_sum = 0.0
        for i in range(length):
            p = np.array([phi_q[i] @ phi_k[j] for j in range(length)])
            mixed[i, head] = (p / (p.sum() + in_sum)) @ v
    return linear(mixed.reshape(length, -1), weights, at + "attention.out")


def favor_exponents(x, w):
    """Choromanski et al. 2021, equation 5 with x / d^(1/4): exponents of the positive features, (N, M)."""
    x = x / math.sqrt(math.sqrt(x.shape[-1]))
    return np.array([[w_m @ row - row @ row / 2 for w_m in w] for row in x])


def score(q, k, i, j, head, mixer: SoftmaxAttention, weights) -> float:
    bias = -press_slopes(mixer.heads)[head] * abs(i - j) if isinstance(mixer.position, Alibi) else 0.0
    if isinstance(mixer.position, RelativePositionBias):
        bias = weights["distances.table.weight"][bucket(i - j, mixer.position), head]
    factor = 1 / math.sqrt(len(q)) if mixer.score_scale is None else mixer.score_scale
    return float(q @ k * factor + bias)


def bucket(behind: int, position: RelativePositionBias) -> int:
    """T5's rule, by counting the borders of the wider buckets that a distance has reached."""
    each = position.buckets // 2
    exact, far = each // 2, abs(behind)
    growth = position.max_distance / exact
    borders = [exact * growth ** (step / (each - exact)) for step in range(1, each - exact)]
    merged = far if far < exact else exact + sum(far >= border * (1 - 1e-12) for border in borders)
    return merged + (each if behind < 0 else 0)


def press_slopes(heads: int) -> list[float]:
    """The published rule, written as its authors do: recursion on the nearest power of two."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    nearest = 2 ** math.floor(math.log2(heads))
    return press_slopes(nearest) + press_slopes(2 * nearest)[0::2][: heads - nearest]


def rotate(x, position: Rotary):
    """Pairs of features as complex numbers, turned by position times frequency."""
    width = position.width or x.shape[-1]
    turned = x[:, :width]
    if position.interleaved:
        turned = np.concatenate([turned[:, ::2], turned[:, 1::2]], axis=-1)
    turned = turned_halves(turned, position)
    if position.interleaved:
        turned = np.stack(np.split(turned, 2, axis=-1), axis=-1).reshape(len(x), width)
    return np.concatenate([turned, x[:, width:]], axis=-1)


def turned_halves(x, position: Rotary):
    half = x.shape[-1] // 2
    frequency = position.theta ** (-np.arange(half) / half)
    length = 1.0
    if position.yarn is not None:
        frequency, length = stretched(frequency, position)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.arange(len(x))[:, None] * frequency) * length
    return np.concatenate([turned.real, turned.imag], axis=-1)


def stretched(frequency, position: Rotary):
    """Peng et al. 2024: by how often each pair turns within the trained length, not by its number."""
    yarn, half = position.yarn, len(frequency)

    def pair_that_turns(times):  # the solution of trained * theta ** (-pair / half) = 2 pi times
        return half * math.log(yarn.trained_tokens / (2 * math.pi * times)) / math.log(position.theta)

    first, last = pair_that_turns(yarn.fast), pair_that_turns(yarn.slow)
    if yarn.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    mixed = []
    for pair, of_pair in enumerate(frequency):
        share = min(max((pair - first) / (last - first), 0), 1)
        mixed.append((1 - share) * of_pair + share * of_pair / yarn.factor)
    length = 0.1 * math.log(yarn.factor) + 1 if yarn.stretch is None else yarn.stretch
    return np.array(mixed), length
