"""NomicBERT (Nussbaum, Morris, Duderstadt & Mulyar 2024).

Post-norm layers as BERT's, with SwiGLU, rotary positions instead of learned ones, matrices without biases,
and two segments. Config keys are read under both names that published checkpoints use.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import ACTIVATIONS
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    classifies_tokens,
    predictor,
    present,
    tying,
)
from unmask.model.families.rope import read_rope, write_rope
from unmask.model.spec import (
    Activation,
    Classifier,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    MaskedLM,
    Pooler,
    Rotary,
    SoftmaxAttention,
    Transform,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Concat, Copy, Rename
from unmask.settings import Settings

THETA = 1000.0
"""Where a config names none."""

GATED: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}
"""The published ``activation_function`` -> ours."""

_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "is_decoder": (False,),
    "causal": (False,),
    "prenorm": (False,),
    "parallel_block": (False,),
    "parallel_block_tied_norm": (False,),
    "use_rms_norm": (False, None),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "num_experts": (0, None),
    "moe_every_n_layers": (0, None),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_scale_base": (None,),
    "rotary_scaling_factor": (None,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "rope_scaling": (None,),
}
"""Keys whose other values change outputs and are refused; the first value is that of an absent key."""


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 30528,
    head_width: int | None = None,
    segments: int = 2,
    rotary: Rotary = Rotary(THETA),  # noqa: B008 - a frozen value
    activation: Activation = "silu",
    bias: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    eps: float = 1e-12,
    init_std: float = 0.02,
    padding_id: int | None = 0,
    trained_tokens: int | None = 2048,
) -> EncoderSpec:
    """A NomicBERT of the given sizes. ``bias``: of attention's matrices and of the network's last one."""
    require_at_least("heads", heads, 1)
    if head_width is None and width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    norm = LayerNorm(eps)
    layer = Layer(
        mixer=SoftmaxAttention(
            heads,
            head_width or width // heads,
            position=rotary,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            out_bias=bias,
            dropout=attention_dropout,
        ),
        feedforward=GatedFeedForward(feedforward, activation, out_bias=bias),
        norm=norm,
        dropout=dropout,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=width,
            segments=segments,
            norm=norm,
            dropout=dropout,
            padding_id=padding_id,
        ),
        layers=(layer,) * layers,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    for key, built in _NOT_BUILT.items():
        config.require(key, *built)
    config.require("hidden_act", *ACTIVATIONS)
    config.require("activation_function", *GATED)
    gated = GATED[config.take("activation_function", "swiglu")]
    activation = ACTIVATIONS[config.take("hidden_act", "silu")] if "hidden_act" in config.values else gated
    rotary = read_rope(config.maybe("rope_parameters", dict) or {}, config.take("rotary_emb_base", THETA))
    return spec(
        layers=config.take("num_hidden_layers", config.take("n_layer", 12)),
        width=config.take("hidden_size", config.take("n_embd", 768)),
        heads=config.take("num_attention_heads", config.take("n_head", 12)),
        feedforward=config.take("intermediate_size", config.take("n_inner", 3072)),
        vocabulary=config.take("vocab_size", 30528),
        head_width=config.maybe("head_dim", int),
        segments=config.take("type_vocab_size", 2),
        rotary=replace(rotary, interleaved=config.take("rotary_emb_interleaved", False)),
        activation=activation,
        dropout=config.take("hidden_dropout_prob", config.take("resid_pdrop", 0.0)),
        attention_dropout=config.take("attention_probs_dropout_prob", config.take("attn_pdrop", 0.0)),
        eps=config.take("layer_norm_eps", config.take("layer_norm_epsilon", 1e-12)),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
        trained_tokens=config.take("max_trained_positions", config.take("max_position_embeddings", 2048)),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    mixer, network, norm, rotary = parts_of(encoder)
    return {
        "activation_function": next(name for name, ours in GATED.items() if ours == network.activation),
        "architectures": architectures("NomicBert", encoder),
        "attention_probs_dropout_prob": mixer.dropout,
        "head_dim": mixer.head_width,
        "hidden_act": activation_name(network.activation),
        "hidden_dropout_prob": encoder.layers[0].dropout,
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": network.width,
        "layer_norm_eps": norm.eps,
        "max_position_embeddings": encoder.trained_tokens,
        "model_type": "nomic_bert",
        "num_attention_heads": mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": encoder.embedding.padding_id,
        "rope_parameters": write_rope(rotary),
        "rotary_emb_interleaved": rotary.interleaved,
        "type_vocab_size": encoder.embedding.segments,
        "vocab_size": encoder.embedding.vocabulary,
        **tying(encoder),
    }


def parts_of(encoder: EncoderSpec) -> tuple[SoftmaxAttention, GatedFeedForward, LayerNorm, Rotary]:
    """What all layers of a spec made by `spec` have in common."""
    layer = encoder.layers[0]
    mixer, network, norm = layer.mixer, layer.feedforward, layer.norm
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(network, GatedFeedForward)
    assert isinstance(norm, LayerNorm)
    assert isinstance(mixer.position, Rotary)
    return mixer, network, norm, mixer.position


def activation_name(activation: Activation) -> str:
    """The value of ``hidden_act`` in config.json."""
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the pooler and the head that a checkpoint has."""
    _, network, norm, _ = parts_of(encoder)
    transform = Transform(encoder.width, network.activation, norm)
    masked = predictor(transform, config, shapes, "cls.predictions.decoder")
    return with_heads(encoder, shapes, config, "cls.predictions.transform.dense.weight", masked)


def with_heads(
    encoder: EncoderSpec, shapes: Shapes, config: Settings, masked: str, predictor: MaskedLM
) -> EncoderSpec:
    """With the pooler and heads whose tensors are there; ``masked`` is one of the predictor's."""
    tokens = classifies_tokens(config)
    return replace(
        encoder,
        pooler=Pooler() if "pooler.dense.weight" in shapes else None,
        heads=present(
            shapes,
            (masked, lambda _: predictor),
            (
                "classifier.weight",
                lambda c: (
                    Classifier("tokens", c, "tokens") if tokens else Classifier("sequence", c, "pooler")
                ),
            ),
        ),
    )


_LAYER = "encoder.layers.{l}."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("emb_ln", "embedding.norm"),
    Rename(_LAYER + "attn.Wqkv", "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attn.out_proj", "layers.{l}.attention.out"),
    Rename(_LAYER + "norm1", "layers.{l}.attention_norm"),
    # The second of their two matrices is the one that is activated.
    Concat((_LAYER + "mlp.fc12", _LAYER + "mlp.fc11"), "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.fc2", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "norm2", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
    Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
    Rename("cls.predictions.transform.layer_norm", "heads.masked.transform.norm"),
    Rename("cls.predictions.bias", "heads.masked.bias"),
    Rename("cls.predictions.decoder", "heads.masked.decoder"),
    Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
    Copy("cls.predictions.decoder.bias", "heads.masked.bias"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
)

_NUSSBAUM = "Nussbaum et al. 2024"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)

NOMICBERT = Family(
    name="nomicbert",
    model_types=("nomic_bert",),
    paper=_NUSSBAUM,
    read=read,
    adapt=adapt,
    write=write,
    prefix="nomic_bert.",
    other_prefixes=("bert.",),
    rows=ROWS,
    published=(Published("nomic-ai/nomic-embed-text-v1.5", BASE, "Apache-2.0", _NUSSBAUM),),
)
