"""ModernBERT (Warner et al. 2024), and Ettin (Weller et al. 2025) in the same layout from 17M to 1B.

Pre-norm layers with GeGLU, norms and matrices without biases, and rotary positions. Every third layer
attends to the whole text, the others to a window, each kind with a theta of its own. The embedding is
normalised, so layer 0 has no norm before its attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import ACTIVATIONS
from unmask.model.families.family import Compat, Family, Published, Shapes, architectures
from unmask.model.families.rope import read_rope, write_rope
from unmask.model.spec import (
    Activation,
    Classifier,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Head,
    Layer,
    LayerNorm,
    MaskedLM,
    Reads,
    Role,
    Rotary,
    SoftmaxAttention,
    Transform,
    Whole,
    Window,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Copy, Ignore, Rename, Row
from unmask.settings import Settings

Kind = Literal["full_attention", "sliding_attention"]
"""Of a layer, as config.json calls them."""

WHOLE: Kind = "full_attention"
SLIDING: Kind = "sliding_attention"

THETA: dict[Kind, float] = {WHOLE: 160_000.0, SLIDING: 10_000.0}
"""Where a config names none."""


def pattern(layers: int, every: int = 3) -> tuple[Kind, ...]:
    """The kind of each layer when layers 0, ``every``, twice ``every`` ... attend to the whole text."""
    require_at_least("global_attn_every_n_layers", every, 1)
    return tuple(SLIDING if layer % every else WHOLE for layer in range(layers))


def spec(
    *,
    kinds: Sequence[Kind],
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 50368,
    radius: int = 64,
    rotary: Mapping[Kind, Rotary] | None = None,
    activation: Activation = "gelu",
    attention_bias: bool = False,
    feedforward_bias: bool = False,
    norm_bias: bool = False,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    eps: float = 1e-5,
    init_std: float = 0.02,
    padding_id: int | None = 50283,
    trained_tokens: int | None = 8192,
) -> EncoderSpec:
    """A ModernBERT of the given sizes, one layer for each of ``kinds``."""
    require_at_least("heads", heads, 1)
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    turns = rotary or {kind: Rotary(theta) for kind, theta in THETA.items()}
    norm = LayerNorm(eps, norm_bias)
    layers = tuple(
        Layer(
            mixer=SoftmaxAttention(
                heads,
                width // heads,
                reach=Whole() if kind == WHOLE else Window(radius),
                position=turns[kind],
                query_bias=attention_bias,
                key_bias=attention_bias,
                value_bias=attention_bias,
                out_bias=attention_bias,
                dropout=attention_dropout,
            ),
            feedforward=GatedFeedForward(feedforward, activation, feedforward_bias, feedforward_bias),
            norm=norm,
            norm_first=True,
            attention_norm=number > 0,
        )
        for number, kind in enumerate(kinds)
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=width,
            norm=norm,
            dropout=embedding_dropout,
            padding_id=padding_id,
        ),
        layers=layers,
        final_norm=norm,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("is_decoder", False)
    config.require("position_embedding_type", "absolute", "sans_pos")  # written, but never read by anyone
    config.require("rope_scaling", None)
    config.require("hidden_activation", *ACTIVATIONS)
    layers = config.take("num_hidden_layers", 22)
    require_at_least("num_hidden_layers", layers, 1)
    return spec(
        kinds=_kinds(config, layers),
        width=config.take("hidden_size", 768),
        heads=config.take("num_attention_heads", 12),
        feedforward=config.take("intermediate_size", 1152),
        vocabulary=config.take("vocab_size", 50368),
        # The config counts the tokens on both sides together.
        radius=config.take("local_attention", 128) // 2,
        rotary=_rotary(config),
        activation=ACTIVATIONS[config.take("hidden_activation", "gelu")],
        attention_bias=config.take("attention_bias", False),
        feedforward_bias=config.take("mlp_bias", False),
        norm_bias=config.take("norm_bias", False),
        embedding_dropout=config.take("embedding_dropout", 0.0),
        attention_dropout=config.take("attention_dropout", 0.0),
        eps=config.take("norm_eps", 1e-5),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
        trained_tokens=config.take("max_position_embeddings", 8192),
    )


def _kinds(config: Settings, layers: int) -> tuple[Kind, ...]:
    """The kind of each layer: named one by one in new configs, by their distance in old ones."""
    every = config.take("global_attn_every_n_layers", 3)
    named = config.maybe("layer_types", list)
    if named is None:
        return pattern(layers, every)
    if len(named) != layers:
        raise UnknownArchitecture(f"config.json names the types of {len(named)} layers and has {layers}")
    for kind in named:
        Settings("config.json", {"layer_types": kind}).require("layer_types", WHOLE, SLIDING)
    return tuple(named)


def _rotary(config: Settings) -> dict[Kind, Rotary]:
    """Rotary positions by kind of layer: in one object in new configs, as two numbers in old ones."""
    theta = config.take("global_rope_theta", THETA[WHOLE])
    # The authors' code takes the other theta where the local one is null.
    default = theta if "local_rope_theta" in config.values else THETA[SLIDING]
    local = config.maybe("local_rope_theta", float)
    old = {WHOLE: theta, SLIDING: default if local is None else local}
    objects = Settings("config.json's rope_parameters", config.take("rope_parameters", {}))
    rotary = {
        kind: read_rope(objects.maybe(kind, dict) or {}, old[kind], f"rope_parameters.{kind}")
        for kind in (WHOLE, SLIDING)
    }
    for key in objects.unread():
        raise UnknownArchitecture(f"config.json says rope_parameters of {key!r}, which no layer is")
    return rotary


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    first, norm, embedding = encoder.layers[0], encoder.final_norm, encoder.embedding
    mixer, network = first.mixer, first.feedforward
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(network, GatedFeedForward)
    assert isinstance(norm, LayerNorm)
    kinds, radii, rotary = [], [], {kind: Rotary(theta) for kind, theta in THETA.items()}
    for layer in encoder.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        assert isinstance(layer.mixer.position, Rotary)
        window = layer.mixer.reach
        kinds.append(SLIDING if isinstance(window, Window) else WHOLE)
        radii += [window.radius] if isinstance(window, Window) else []
        rotary[kinds[-1]] = layer.mixer.position
    return {
        "architectures": architectures("ModernBert", encoder),
        "attention_bias": mixer.query_bias,
        "attention_dropout": mixer.dropout,
        "embedding_dropout": embedding.dropout,
        "hidden_activation": _name_of(network.activation),
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": network.width,
        "layer_types": kinds,
        "local_attention": 2 * radii[0] if radii else 128,
        "max_position_embeddings": encoder.trained_tokens,
        "mlp_bias": network.in_bias,
        "model_type": "modernbert",
        "norm_bias": norm.bias,
        "norm_eps": norm.eps,
        "num_attention_heads": mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": embedding.padding_id,
        "rope_parameters": {kind: write_rope(rotary[kind]) for kind in (WHOLE, SLIDING)},
        "vocab_size": embedding.vocabulary,
        **_write_head(encoder.heads),
    }


def _write_head(heads: tuple[Head, ...]) -> dict[str, Any]:
    if not heads or not isinstance(heads[0].transform, Transform):
        return {}
    head, transform = heads[0], heads[0].transform
    common = {
        "classifier_activation": _name_of(transform.activation),
        "classifier_bias": transform.bias,
    }
    if isinstance(head, MaskedLM):
        return common | {"decoder_bias": head.bias, "tie_word_embeddings": head.tied}
    if head.role == "sequence":
        return common | {"classifier_pooling": "cls" if head.reads == "first" else "mean"}
    return common


def _name_of(activation: Activation) -> str:
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the head that a checkpoint has: each is a dense layer, an activation, a norm and a matrix."""
    config.require("classifier_activation", *ACTIVATIONS)
    config.require("classifier_pooling", "cls", "mean")
    transform = Transform(
        encoder.width,
        ACTIVATIONS[config.take("classifier_activation", "gelu")],
        encoder.final_norm,
        config.take("classifier_bias", False),
    )
    pooling: Reads = "mean" if config.take("classifier_pooling", "cls") == "mean" else "first"
    masked = MaskedLM(transform, config.take("tie_word_embeddings", True), config.take("decoder_bias", True))
    heads: tuple[Head, ...] = ()
    if "classifier.weight" in shapes:
        role = _role(config.values.get("architectures"))
        reads = pooling if role == "sequence" else "tokens"
        heads = (Classifier(role, shapes["classifier.weight"][0], reads, transform),)
    elif "head.dense.weight" in shapes:
        heads = (masked,)
    return replace(encoder, heads=heads)


def _role(names: object) -> Role:
    """What a head called ``classifier`` decides: only the class it was saved from says so."""
    said = " ".join(map(str, names)) if isinstance(names, list) else ""
    if "TokenClassification" in said:
        return "tokens"
    if "QuestionAnswering" in said:
        return "span"
    if "MultipleChoice" in said:
        raise UnknownArchitecture("config.json says architectures is multiple choice, which is not built")
    return "sequence"


def _classifier(role: Role) -> tuple[Row, ...]:
    return (
        Rename("head.dense", f"heads.{role}.transform.dense"),
        Rename("head.norm", f"heads.{role}.transform.norm"),
        Rename("classifier", f"heads.{role}.out"),
    )


_LAYER = "layers.{l}."

ROWS = (
    Rename("embeddings.tok_embeddings", "embedding.words"),
    Rename("embeddings.norm", "embedding.norm"),
    Rename(_LAYER + "attn_norm", _LAYER + "attention_norm"),
    Rename(_LAYER + "attn.Wqkv", _LAYER + "attention.qkv"),
    Rename(_LAYER + "attn.Wo", _LAYER + "attention.out"),
    Rename(_LAYER + "mlp_norm", _LAYER + "feedforward_norm"),
    Rename(_LAYER + "mlp.Wi", _LAYER + "feedforward.inner"),
    Rename(_LAYER + "mlp.Wo", _LAYER + "feedforward.outer"),
    Rename("final_norm", "final_norm"),
    Ignore("layers.*.attn.rotary_emb.inv_freq", "a buffer of frequencies, computed here"),
    Rename("head.dense", "heads.masked.transform.dense"),
    Rename("head.norm", "heads.masked.transform.norm"),
    Rename("decoder", "heads.masked.decoder"),
    Rename("decoder.bias", "heads.masked.bias"),
    Copy("decoder.weight", "embedding.words.weight"),
    *_classifier("sequence"),
    *_classifier("tokens"),
    *_classifier("span"),
)

_WARNER = "Warner et al. 2024"
_WELLER = "Weller et al. 2025"

BASE = spec(kinds=pattern(22), width=768, heads=12, feedforward=1152)
LARGE = spec(kinds=pattern(28), width=1024, heads=16, feedforward=2624)

ETTIN_ROTARY: dict[Kind, Rotary] = {WHOLE: Rotary(160_000.0), SLIDING: Rotary(160_000.0)}
"""Ettin's last phase of training gave all layers one theta."""


def _ettin(layers: int, width: int, heads: int, feedforward: int) -> EncoderSpec:
    return spec(kinds=pattern(layers), width=width, heads=heads, feedforward=feedforward, rotary=ETTIN_ROTARY)


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the head it was pretrained with: masked words."""
    head = MaskedLM(Transform(encoder.width, "gelu", encoder.final_norm, bias=False))
    return replace(encoder, heads=(head,))


def _published(name: str, encoder: EncoderSpec, licence: str, paper: str) -> Published:
    return Published(name, encoder, licence, paper, pretraining(encoder))


MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    paper=_WARNER,
    read=read,
    adapt=adapt,
    write=write,
    prefix="model.",
    rows=ROWS,
    published=(
        _published("answerdotai/ModernBERT-base", BASE, "Apache-2.0", _WARNER),
        _published("answerdotai/ModernBERT-large", LARGE, "Apache-2.0", _WARNER),
        _published("jhu-clsp/ettin-encoder-17m", _ettin(7, 256, 4, 384), "MIT", _WELLER),
        _published("jhu-clsp/ettin-encoder-32m", _ettin(10, 384, 6, 576), "MIT", _WELLER),
        _published("jhu-clsp/ettin-encoder-68m", _ettin(19, 512, 8, 768), "MIT", _WELLER),
        _published("jhu-clsp/ettin-encoder-1b", _ettin(28, 1792, 28, 3840), "MIT", _WELLER),
    ),
)
