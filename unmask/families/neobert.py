"""NeoBERT (Le Breton, Fournier, El Mezouar, Morris & Chandar 2025): 28 layers of width 768.

Pre-norm layers with RMSNorm, SwiGLU and rotary positions over neighboring features, no biases, no norm after
the embedding, and an MLM head with its own matrix.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.common import biases, head_width_of
from unmask.families.family import Family, Release
from unmask.families.heads import HeadLayout, dense_sequence
from unmask.spec import (
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    MaskedLM,
    RMSNorm,
    Rotary,
    SoftmaxAttention,
)
from unmask.spec.check import require_size
from unmask.spec.compat import Compat
from unmask.spec.config_keys import Arguments, Key, KeyGroup, in_range, only
from unmask.spec.tensor_map import Ignore, Rename, Reorder

MULTIPLE = 8
"""The network's width is two thirds of ``intermediate_size``, rounded up to a multiple of this."""


def _read_widths(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    width, heads = arguments["width"], arguments["heads"]
    if (head_width := config.get("dim_head", width // heads)) != width / heads:
        raise UnknownArchitecture(
            f"dim_head is {head_width}, and only hidden_size {width} divided by num_attention_heads {heads} "
            "is built"
        )
    whole = config.get("intermediate_size", 3072)
    in_range(config, "intermediate_size", whole, partial(require_size, least=2))
    return {"feedforward": -(-(2 * whole // 3) // MULTIPLE) * MULTIPLE}


def _write_widths(encoder: EncoderSpec) -> Mapping[str, Any]:
    layer = encoder.layers[0]
    return {"dim_head": layer.mixer.head_width, "intermediate_size": layer.feedforward.width * 3 // 2}


KEYS = (
    only("is_decoder", False),
    only("hidden_act", "SwiGLU", "swiglu"),
    only("rope", True),
    only("rms_norm", True),
    only("ngpt", False),
    Key("num_hidden_layers", "layers", 28),
    Key("hidden_size", "width", 768),
    Key("num_attention_heads", "heads", 12),
    KeyGroup(_read_widths, _write_widths),
    Key("vocab_size", "vocabulary", 30522),
    Key("norm_eps", "eps", 1e-6),
    Key("decoder_init_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
    Key("max_length", "trained_tokens", 1024),
)


def _head_by_head(encoder: EncoderSpec) -> tuple[int, ...]:
    """Their rows are grouped by head, then by query, key, value; ours by query, key, value, then by head."""
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
)


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int,
    eps: float,
    init_std: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """A NeoBERT of the given sizes; ``feedforward`` is the width of one half of the gated network."""
    layer = Layer(
        mixer=SoftmaxAttention(
            heads,
            head_width_of(width, heads),
            position=Rotary(10_000.0, interleaved=True),
            **biases(False),
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


HEADS = (
    HeadLayout(
        "decoder.weight",
        ("masked",),
        lambda info, vocabulary: MaskedLM(None, tied=False),
        (Rename("decoder", "heads.masked.decoder"), Rename("decoder.bias", "heads.masked.bias")),
    ),
    dense_sequence("tanh", dense="dense", name="classifier"),
)

PUBLISHED = (Release("chandar-lab/NeoBERT", {"max_length": 4096, "norm_eps": 1e-5}),)

NEOBERT = Family(
    name="neobert",
    model_types=("neobert",),
    stem="NeoBERT",
    paper="Le Breton et al. 2025",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=HEADS,
    releases=PUBLISHED,
    license="MIT",
    classes={
        frozenset(): "",
        frozenset({"masked"}): "LMHead",
        frozenset({"sequence"}): "ForSequenceClassification",
    },
)
