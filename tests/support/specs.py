"""Small encoders of unusual sizes for tests, with weights large enough for attention to be uneven."""

import torch

from unmask.model.encoder import Encoder
from unmask.model.spec import (
    Alibi,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LearnedPositions,
    PlainFeedForward,
    Pooler,
    Projection,
    RMSNorm,
    Rotary,
    SoftmaxAttention,
    Window,
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
                reach=Window(radius=2),
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


def random_encoder(spec: EncoderSpec, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Encoder:
    """An encoder in evaluation mode whose every tensor, biases and norms too, is random."""
    generator = torch.Generator().manual_seed(seed)
    encoder = Encoder(spec)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            scale = 0.2 if parameter.ndim < 2 else 1.0 / parameter.shape[-1] ** 0.5
            parameter.copy_(around + scale * torch.randn(parameter.shape, generator=generator))
    return encoder.to(dtype).eval()
