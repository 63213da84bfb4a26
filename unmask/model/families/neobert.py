"""NeoBERT (Le Breton, Fournier, El Mezouar, Morris & Chandar 2025): 28 layers of width 768.

Pre-norm layers with RMSNorm, SwiGLU and rotary positions over neighbouring features, no biases, no norm after
the embedding, and a predictor of words with a matrix of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.family import Compat, Family, Published, Shapes, present
from unmask.model.spec import (
    Classifier,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    MaskedLM,
    RMSNorm,
    Rotary,
    SoftmaxAttention,
    Transform,
    role_of,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Ignore, Rename, Reorder
from unmask.settings import Settings

MULTIPLE = 8
"""The network's width is two thirds of ``intermediate_size``, rounded up to a multiple of this."""


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 30522,
    eps: float = 1e-5,
    init_std: float = 0.02,
    padding_id: int | None = 0,
    trained_tokens: int | None = 4096,
) -> EncoderSpec:
    """A NeoBERT of the given sizes; ``feedforward`` is the width of one half of the gated network."""
    require_at_least("heads", heads, 1)
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    layer = Layer(
        mixer=SoftmaxAttention(
            heads,
            width // heads,
            position=Rotary(10_000.0, interleaved=True),
            query_bias=False,
            key_bias=False,
            value_bias=False,
            out_bias=False,
        ),
        feedforward=GatedFeedForward(feedforward, "silu"),
        norm=RMSNorm(eps),
        norm_first=True,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(vocabulary=vocabulary, width=width, padding_id=padding_id),
        layers=(layer,) * layers,
        final_norm=RMSNorm(eps),
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("is_decoder", False)
    config.require("hidden_act", "SwiGLU", "swiglu")
    config.require("rope", True)
    config.require("rms_norm", True)
    config.require("ngpt", False)
    width, heads = config.take("hidden_size", 768), config.take("num_attention_heads", 12)
    if heads > 0:
        config.require("dim_head", width // heads)
    third = 2 * config.take("intermediate_size", 3072) // 3
    return spec(
        layers=config.take("num_hidden_layers", 28),
        width=width,
        heads=heads,
        feedforward=-(-third // MULTIPLE) * MULTIPLE,
        vocabulary=config.take("vocab_size", 30522),
        eps=config.take("norm_eps", 1e-6),
        init_std=config.take("decoder_init_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
        trained_tokens=config.take("max_length", 1024),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    layer = encoder.layers[0]
    assert isinstance(layer.mixer, SoftmaxAttention)
    assert isinstance(layer.norm, RMSNorm)
    roles = [role_of(head) for head in encoder.heads]
    name = {"masked": "LMHead", "sequence": "ForSequenceClassification"}.get(roles[0], "") if roles else ""
    return {
        "architectures": ["NeoBERT" + name],
        "decoder_init_range": encoder.init_std,
        "dim_head": layer.mixer.head_width,
        "hidden_size": encoder.width,
        "intermediate_size": layer.feedforward.width * 3 // 2,
        "max_length": encoder.trained_tokens,
        "model_type": "neobert",
        "norm_eps": layer.norm.eps,
        "num_attention_heads": layer.mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": encoder.embedding.padding_id,
        "vocab_size": encoder.embedding.vocabulary,
    }


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the head that a checkpoint has: for words, or for texts from their first token."""
    heads = present(
        shapes,
        ("decoder.weight", lambda _: MaskedLM(None, tied=False)),
        ("classifier.weight", lambda c: Classifier("sequence", c, "first", Transform(encoder.width, "tanh"))),
    )
    return replace(encoder, heads=heads)


def _head_by_head(encoder: EncoderSpec) -> tuple[int, ...]:
    """Their rows go head by head, query, key and value within each; ours the other way about."""
    mixer = encoder.layers[0].mixer
    return tuple(3 * head + part for part in range(3) for head in range(mixer.heads))


_LAYER = "transformer_encoder.{l}."

ROWS = (
    Rename("encoder", "embedding.words"),
    Rename(_LAYER + "attention_norm", "layers.{l}.attention_norm"),
    Reorder(_LAYER + "qkv", "layers.{l}.attention.qkv", _head_by_head),
    Rename(_LAYER + "wo", "layers.{l}.attention.out"),
    Rename(_LAYER + "ffn_norm", "layers.{l}.feedforward_norm"),
    Rename(_LAYER + "ffn.w12", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "ffn.w3", "layers.{l}.feedforward.outer"),
    Rename("layer_norm", "final_norm"),
    Ignore("freqs_cis", "a buffer of angles, computed here"),
    Rename("decoder", "heads.masked.decoder"),
    Rename("decoder.bias", "heads.masked.bias"),
    Rename("dense", "heads.sequence.transform.dense"),
    Rename("classifier", "heads.sequence.out"),
)

_LE_BRETON = "Le Breton et al. 2025"

BASE = spec(layers=28, width=768, heads=12, feedforward=2048)

NEOBERT = Family(
    name="neobert",
    model_types=("neobert",),
    paper=_LE_BRETON,
    read=read,
    adapt=adapt,
    write=write,
    prefix="model.",
    rows=ROWS,
    published=(
        Published(
            "chandar-lab/NeoBERT",
            BASE,
            "MIT",
            _LE_BRETON,
            replace(BASE, heads=(MaskedLM(None, tied=False),)),
        ),
    ),
)
