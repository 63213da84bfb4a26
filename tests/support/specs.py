"""Small encoders of unusual sizes for tests, with weights large enough for attention to be uneven."""

from dataclasses import replace

import torch

from unmask.encoder.encoder import Encoder
from unmask.spec import (
    Alibi,
    BlockSparse,
    Bottleneck,
    CausalAttention,
    CheckpointOutput,
    ClampedGate,
    Convolution,
    Disentangled,
    Embedding,
    EmbeddingGate,
    EncoderSpec,
    ExpertFeedForward,
    FullAttention,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LearnedPositions,
    LinearAttention,
    NoNorm,
    NoPosition,
    PlainFeedForward,
    Pooler,
    Projection,
    QueryKeyNorm,
    RelativePositionBias,
    RMSNorm,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    SpanConvolution,
    StackedFeedForward,
    TokenDropout,
    Yarn,
)

VOCABULARY = 97

POST_NORM = EncoderSpec(
    width=24,
    embedding=Embedding(
        vocabulary=VOCABULARY, width=24, positions=LearnedPositions(64), segments=2, norm=LayerNorm(1e-12)
    ),
    layers=(
        Layer(
            mixer=SoftmaxAttention(heads=3, head_width=8),
            feedforward=PlainFeedForward(40, "gelu"),
            norm=LayerNorm(1e-12),
        ),
    )
    * 3,
    pooler=Pooler(),
)
"""BERT's shape, with three heads."""

ROTARY_WINDOWS = EncoderSpec(
    width=20,
    embedding=Embedding(vocabulary=VOCABULARY, width=20, norm=LayerNorm(1e-5, bias=False)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                heads=5,
                head_width=4,
                pattern=SlidingWindow(radius=2),
                position=Rotary(theta),
                query_bias=False,
                key_bias=False,
                value_bias=False,
                out_bias=False,
            ),
            feedforward=GatedFeedForward(28, "gelu"),
            norm=LayerNorm(1e-5, bias=False),
            norm_first=True,
            attention_norm=layer > 0,
        )
        for layer, theta in enumerate((160_000.0, 10_000.0))
    ),
    final_norm=LayerNorm(1e-5, bias=False),
)
"""ModernBERT's parts: pre-norm, GeGLU, rotary positions of two scales, windows."""

ALIBI_SHARED = EncoderSpec(
    width=18,
    embedding=Embedding(
        vocabulary=VOCABULARY, width=10, segments=3, norm=RMSNorm(1e-6), projection=Projection()
    ),
    layers=(
        Layer(
            mixer=SoftmaxAttention(heads=6, head_width=3, position=Alibi()),
            feedforward=GatedFeedForward(22, "silu", out_bias=True),
            norm=RMSNorm(1e-6),
        ),
    )
    * 4,
    sharing=(0, 0, 1, 1),
)
"""ALiBi with six heads, RMS norms, a narrow embedding, two sets of weights for four layers."""

SPECS = {"post-norm": POST_NORM, "rotary-windows": ROTARY_WINDOWS, "alibi-shared": ALIBI_SHARED}


LINEAR = EncoderSpec(
    width=15,
    embedding=Embedding(VOCABULARY, width=15, positions=LearnedPositions(64), norm=LayerNorm(1e-5)),
    layers=(
        Layer(
            mixer=LinearAttention(heads=3, head_width=5, feature_map="elu+1"),
            feedforward=PlainFeedForward(22, "gelu"),
            norm=LayerNorm(1e-5),
        ),
    )
    * 2,
)
"""Linear attention, three heads."""

PERFORMER = EncoderSpec(
    width=21,
    embedding=Embedding(VOCABULARY, width=21, positions=LearnedPositions(64), norm=LayerNorm(1e-5)),
    layers=tuple(
        Layer(
            mixer=LinearAttention(3, 7, "favor+", random_features=features, eps=1e-4, bias=False),
            feedforward=GatedFeedForward(20, "silu"),
            norm=LayerNorm(1e-5),
            norm_first=True,
        )
        for features in (19, 4)
    ),
    final_norm=LayerNorm(1e-5),
)
"""FAVOR+ with more random features than a head is wide, and with fewer; no biases; pre-norm."""

EXPERTS = EncoderSpec(
    width=16,
    embedding=Embedding(VOCABULARY, width=16, norm=LayerNorm(1e-5)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(heads=4, head_width=4, position=Rotary(10_000.0)),
            feedforward=network,
            norm=LayerNorm(1e-5),
        )
        for network in (
            PlainFeedForward(24, "gelu"),
            ExpertFeedForward(24, "gelu", experts=5, chosen=2),
            ExpertFeedForward(10, "silu", experts=3, chosen=2, normalize=True, bias=False),
        )
    ),
)
"""One plain network, one of experts, and one of experts whose shares add up to 1, without a bias."""

SPECS |= {"linear": LINEAR, "performer": PERFORMER, "experts": EXPERTS}


WINDOWS_GLOBALS = EncoderSpec(
    width=18,
    embedding=Embedding(VOCABULARY, width=18, positions=LearnedPositions(66, offset=2), norm=LayerNorm(1e-5)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(3, 6, pattern=SlidingWindowGlobal(window, own_projections=own)),
            feedforward=PlainFeedForward(20, "gelu"),
            norm=LayerNorm(1e-5),
        )
        for window, own in (
            (SlidingWindow(2), True),
            (SlidingWindow(1, dilation=3), True),
            (SlidingWindow(3), False),
        )
    ),
)
"""Longformer's parts: a window a layer, one dilated, global tokens with projections of their own or not."""

BLOCKS = EncoderSpec(
    width=12,
    embedding=Embedding(VOCABULARY, width=12, positions=LearnedPositions(64), norm=LayerNorm(1e-12)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(3, 4, pattern=pattern),
            feedforward=PlainFeedForward(20, "gelu"),
            norm=LayerNorm(1e-12),
        )
        for pattern in (
            BlockSparse(2, random_blocks=1, seed=0),
            BlockSparse(2, random_blocks=1, seed=1),
            BlockSparse(1, 2),
        )
    ),
)
"""BigBird's parts: blocks drawn for each layer and head, and the plan that names block 0 alone."""

SPECS |= {"windows-globals": WINDOWS_GLOBALS, "blocks": BLOCKS}


DISENTANGLED = EncoderSpec(
    width=15,
    embedding=Embedding(
        VOCABULARY, width=8, segments=2, norm=LayerNorm(1e-7), projection=Projection(False, before_norm=True)
    ),
    layers=(
        Layer(
            mixer=SoftmaxAttention(
                heads=5,
                head_width=3,
                position=Disentangled(
                    9, buckets=6, shared_projections=True, table_norm=LayerNorm(1e-7), clamped=True
                ),
            ),
            feedforward=PlainFeedForward(22, "gelu"),
            norm=LayerNorm(1e-7),
        ),
    )
    * 3,
    convolution=Convolution(3, LayerNorm(1e-7), "gelu"),
)
"""DeBERTa's later parts: merged distances, a table normalized and projected as content is, a convolution."""

DISENTANGLED_OWN = EncoderSpec(
    width=14,
    embedding=Embedding(VOCABULARY, width=14, norm=LayerNorm(1e-7)),
    layers=(
        Layer(
            mixer=SoftmaxAttention(
                heads=2,
                head_width=7,
                position=Disentangled(5, position_key_bias=False),
                key_bias=False,
            ),
            feedforward=PlainFeedForward(20, "silu"),
            norm=LayerNorm(1e-7),
        ),
    )
    * 2,
)
"""DeBERTa's first parts: projections of the table of their own, a table shorter than texts, no key bias."""

SPECS |= {"disentangled": DISENTANGLED, "disentangled-own": DISENTANGLED_OWN}

RELATIVE = EncoderSpec(
    width=18,
    embedding=Embedding(VOCABULARY, width=18, positions=LearnedPositions(66, offset=2), norm=LayerNorm(1e-5)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                heads=3, head_width=6, pattern=pattern, position=RelativePositionBias(8, max_distance=9)
            ),
            feedforward=PlainFeedForward(26, "gelu"),
            norm=LayerNorm(1e-5),
        )
        for pattern in (FullAttention(), SlidingWindow(7))
    ),
    pooler=Pooler(),
)
"""MPNet's shape, with few buckets so that texts reach the last, and a layer with a window."""

SPECS["relative"] = RELATIVE

GROUPED = EncoderSpec(
    width=24,
    embedding=Embedding(VOCABULARY, width=24, norm=RMSNorm(1e-5)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                6, 4, pattern, Rotary(250_000.0), query_bias=biased, key_value_heads=key_value_heads
            ),
            feedforward=GatedFeedForward(28, "silu"),
            norm=RMSNorm(1e-5),
            norm_first=True,
        )
        for pattern, biased, key_value_heads in (
            (FullAttention(), True, 2),
            (SlidingWindow(3), False, 3),
            (FullAttention(), True, 1),
        )
    ),
    final_norm=RMSNorm(1e-5),
)
"""EuroBERT's parts: heads that share keys and values by three, by two, and all of them; a bias left out."""

SPECS["grouped"] = GROUPED


CAUSAL = EncoderSpec(
    width=20,
    embedding=Embedding(VOCABULARY, width=20, positions=LearnedPositions(64), norm=LayerNorm(1e-12)),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(4, 5, pattern=CausalAttention(), position=position),
            feedforward=PlainFeedForward(28, "gelu"),
            norm=LayerNorm(1e-12),
        )
        for position in (NoPosition(), Alibi(), Disentangled(5))
    ),
)
"""A decoder without cross attention, with several positions."""

SPECS["causal"] = CAUSAL


TASKS = replace(
    POST_NORM,
    embedding=replace(POST_NORM.embedding, tasks=3),
    layers=(replace(POST_NORM.layers[0], norm_first=True),) * 2,
    final_norm=LayerNorm(1e-5),
)
"""Pre-norm layers with biases, and ERNIE's tasks."""

SPECS["tasks"] = TASKS


RESIDUES = replace(
    ROTARY_WINDOWS,
    embedding=Embedding(VOCABULARY, width=20, norm=LayerNorm(1e-5), token_dropout=TokenDropout(4)),
    layers=(
        replace(POST_NORM.layers[0], mixer=SoftmaxAttention(5, 4, position=Rotary(9.0)), norm_first=True),
    )
    * 2,
    final_norm=LayerNorm(1e-5),
)
"""ESM-2's shape."""

SPECS["residues"] = RESIDUES

SANDWICH = EncoderSpec(
    width=20,
    embedding=Embedding(VOCABULARY, width=20, scale=20**0.5),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                heads=4,
                head_width=6,
                pattern=pattern,
                position=position,
                query_bias=False,
                key_bias=False,
                value_bias=False,
                out_bias=False,
                key_value_heads=2,
                query_key_norm=QueryKeyNorm(RMSNorm(1e-6, one_plus=True)),
                score_scale=0.3,
            ),
            feedforward=GatedFeedForward(26, "gelu_tanh"),
            norm=RMSNorm(1e-6, one_plus=True),
            norm_first=True,
            output_norms=True,
        )
        for pattern, position in (
            (SlidingWindow(3), Rotary(10_000.0, interleaved=True)),
            (FullAttention(), Rotary(1_000_000.0, yarn=Yarn(4.0, 32, slow=0.5))),
        )
    ),
    final_norm=RMSNorm(1e-6, one_plus=True),
)
"""Gemma 3's parts: four norms a layer with scales 1 + w, normed queries and keys of heads that share keys, a
scaled embedding and scores; and YaRN."""

NORMED_WHOLE = EncoderSpec(
    width=18,
    embedding=Embedding(VOCABULARY, width=18, norm=LayerNorm(1e-12), scale=0.5),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                3, 6, position=position, query_key_norm=QueryKeyNorm(norm, "all"), score_scale=scale
            ),
            feedforward=PlainFeedForward(22, "relu"),
            norm=LayerNorm(1e-12),
            attention_sum_norm=scale is None,
        )
        for position, norm, scale in (
            (Alibi(), LayerNorm(1e-5), None),
            (Rotary(10_000.0, width=4, interleaved=True), LayerNorm(1e-5, bias=False), 1.0),
        )
    ),
)
"""JinaBERT's norms of queries and keys over all heads, with ALiBi; and T5's unscaled scores."""

SCALED = EncoderSpec(
    width=18,
    embedding=Embedding(VOCABULARY, width=18),
    layers=(
        Layer(
            mixer=SoftmaxAttention(
                3, 6, position=RelativePositionBias(8, max_distance=9), score_scale=1.0, key_bias=False
            ),
            feedforward=PlainFeedForward(22, "relu", bias=False),
            norm=RMSNorm(1e-6),
            norm_first=True,
        ),
    )
    * 2,
    final_norm=RMSNorm(1e-6),
)
"""T5's parts: scores that are not divided, with relative biases."""

SPECS |= {"sandwich": SANDWICH, "normed-whole": NORMED_WHOLE, "scaled": SCALED}

DIVIDED = EncoderSpec(
    width=20,
    embedding=Embedding(VOCABULARY, width=20),
    layers=(
        Layer(
            mixer=SoftmaxAttention(
                5,
                4,
                position=Rotary(10_000.0),
                out_bias=False,
                query_key_norm=QueryKeyNorm(LayerNorm(1e-5, bias=False), "all"),
            ),
            feedforward=GatedFeedForward(26, "silu", in_bias=True, out_bias=True),
            norm=LayerNorm(1e-5),
            norm_first=True,
            output_scale=0.4,
        ),
    )
    * 2,
    final_norm=LayerNorm(1e-5, bias=False),
)
"""ESM C's parts: what layers add is scaled, queries and keys are normalized over all heads."""

SPECS["divided"] = DIVIDED

SPANS = EncoderSpec(
    width=24,
    embedding=Embedding(
        VOCABULARY,
        width=10,
        positions=LearnedPositions(64),
        segments=2,
        norm=LayerNorm(1e-12),
        projection=Projection(),
    ),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(heads, width, span_convolution=SpanConvolution(kernel)),
            feedforward=PlainFeedForward(30, "gelu", groups=groups),
            norm=LayerNorm(1e-12),
        )
        for heads, width, kernel, groups in ((3, 4, 5, 2), (3, 2, 9, 1))
    ),
)
"""ConvBERT's parts: convolutions of two sizes beside heads of attention, a network in groups."""

SPECS["spans"] = SPANS

SINKS = EncoderSpec(
    width=20,
    embedding=Embedding(VOCABULARY, width=20),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(4, 6, pattern, position, key_value_heads=groups, sinks=True),
            feedforward=ExpertFeedForward(
                9,
                "silu",
                experts=5,
                chosen=2,
                normalize=True,
                bias=False,
                gate=ClampedGate(limit=0.5),
                router_bias=True,
                expert_biases=True,
                balance=0.01,
            ),
            norm=RMSNorm(1e-5),
            norm_first=True,
        )
        for pattern, position, groups in (
            (SlidingWindow(3), Rotary(150_000.0, interleaved=True, yarn=Yarn(4.0, 16, whole_pairs=False)), 2),
            (FullAttention(), Alibi(), None),
        )
    ),
    final_norm=RMSNorm(1e-5),
)
"""openai/privacy-filter's parts: attention sinks, experts with clamped gates and biases; sinks with ALiBi."""

SPECS["sinks"] = SINKS

NARROW = EncoderSpec(
    width=24,
    embedding=Embedding(
        VOCABULARY,
        width=10,
        positions=LearnedPositions(64),
        segments=2,
        norm=NoNorm(),
        projection=Projection(before_norm=True, words_alone=True, neighbors=1),
    ),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(3, 4),
            feedforward=network,
            norm=norm,
            bottleneck=Bottleneck(12, attention),
        )
        for attention, network, norm in (
            ("shared", StackedFeedForward(PlainFeedForward(18, "relu"), 3, NoNorm()), NoNorm()),
            ("narrow", PlainFeedForward(18, "relu"), LayerNorm(1e-5)),
            ("input", StackedFeedForward(PlainFeedForward(14, "gelu"), 2, LayerNorm(1e-5)), NoNorm()),
        )
    ),
)
"""MobileBERT's parts: bottlenecks of each kind, stacks of networks, NoNorm, neighbors in the embedding."""

SPECS["narrow"] = NARROW

GATED = EncoderSpec(
    width=20,
    embedding=Embedding(VOCABULARY, width=20, scale=20**0.5),
    layers=tuple(
        Layer(
            mixer=SoftmaxAttention(
                4,
                width,
                pattern,
                Rotary(10_000.0, interleaved=True),
                out_bias=False,
                key_value_heads=groups,
                query_key_norm=QueryKeyNorm(RMSNorm(1e-6), values=True),
                score_scale=1.0,
            ),
            feedforward=GatedFeedForward(26, "gelu_tanh"),
            norm=RMSNorm(1e-6),
            norm_first=True,
            output_norms=True,
            gate=EmbeddingGate(7, "gelu_tanh"),
            factor=True,
        )
        for pattern, width, groups in ((SlidingWindow(3), 6, 2), (FullAttention(), 8, 1))
    ),
    final_norm=RMSNorm(1e-6),
    output_width=22,
)
"""EmbeddingGemma 2's parts: gates that read the embedding, factors of layers, norms of values, heads of two
sizes, last states of another width."""

SPECS["gated"] = GATED


def global_tokens(length: int) -> list[int]:
    """The global tokens of a text in tests, for encoders that have a use for them."""
    return [place for place in (0, 4) if place < length]


def random_encoder(
    spec: EncoderSpec,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    output: CheckpointOutput | None = None,
) -> Encoder:
    """An encoder in evaluation mode whose every tensor, biases and norms too, is random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # what an encoder draws for itself, such as random features
        torch.manual_seed(seed)
        encoder = Encoder(spec, output=output)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            scale = (
                1.5
                if name.endswith("sinks")
                else 0.2
                if parameter.ndim < 2
                else 1.0 / parameter.shape[-1] ** 0.5
            )
            parameter.copy_(around + scale * torch.randn(parameter.shape, generator=generator))
        for name, buffer in encoder.named_buffers():
            if name.endswith(".factor"):
                buffer.fill_(0.7 + 0.6 * float(torch.rand((), generator=generator)))
    return encoder.to(dtype).eval()
