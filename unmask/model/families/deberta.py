"""DeBERTa (He, Liu, Gao & Chen 2021): distances in the scores, apart from content ("disentangled").

Post-norm layers with exact GELU. Query, key and value are one projection, those of a head side by side,
with biases on queries and values only. Each layer projects the shared table of distances by matrices of
its own. Checkpoints were trained with an enhanced mask decoder, which knows absolute positions
(`unmask.model.decoder`). Its head (``lm_predictions``) goes with a table of positions, which the embedding
does not add; where a checkpoint has none, the head reads the last hidden states, as `transformers` has it
with ``legacy=False``. The key ``enhanced_mask_decoder``, which is of unmask alone, asks for the table in the
config of an encoder that is still to be trained.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import ACTIVATIONS as BERT_ACTIVATIONS
from unmask.model.families.bert import feedforward_of
from unmask.model.families.family import (
    Family,
    Published,
    Shapes,
    architectures,
    classifies_tokens,
    present,
    refuse_choices,
)
from unmask.model.spec import (
    Activation,
    AttentionPosition,
    Classifier,
    Disentangled,
    Embedding,
    EncoderSpec,
    Layer,
    LayerNorm,
    LearnedPositions,
    MaskedLM,
    NoPosition,
    PlainFeedForward,
    Pooler,
    Projection,
    SoftmaxAttention,
    Transform,
    role_of,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.compat import Compat
from unmask.model.spec.rows import Copy, Ignore, Rename, Reorder
from unmask.settings import Settings

ACTIVATIONS: dict[str, Activation] = {**BERT_ACTIVATIONS, "tanh": "tanh"}
"""As in `bert`, and tanh, the default of later convolutions."""

TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}
"""``pos_att_type`` -> ours."""


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 50265,
    position: AttentionPosition | None = None,
    positions: int = 0,
    decoder: int = 0,
    trained_tokens: int = 512,
    segments: int = 0,
    embedding_width: int | None = None,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    eps: float = 1e-7,
    init_std: float = 0.02,
    padding_id: int | None = 0,
) -> EncoderSpec:
    """A DeBERTa of the given sizes.

    ``position`` is that of every layer; None is the published one, both terms over ``trained_tokens``.
    With ``positions`` above 0, that many absolute positions are added to the embedding; with ``decoder``
    above 0, a table of as many is kept for an enhanced mask decoder.
    """
    require_at_least("heads", heads, 1)
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    if position is None:
        position = Disentangled(trained_tokens, position_key_bias=False, table_dropout=dropout)
    norm = LayerNorm(eps)
    layer = Layer(
        mixer=SoftmaxAttention(
            heads, width // heads, position=position, key_bias=False, dropout=attention_dropout
        ),
        feedforward=PlainFeedForward(feedforward, activation),
        norm=norm,
        dropout=dropout,
    )
    narrow = embedding_width is not None and embedding_width != width
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=embedding_width or width,
            positions=LearnedPositions(positions or decoder, added=positions > 0)
            if positions or decoder
            else None,
            segments=segments,
            norm=norm,
            projection=Projection(bias=False, before_norm=True) if narrow else None,
            dropout=dropout,
            padding_id=padding_id,
        ),
        layers=(layer,) * layers,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("talking_head", False)
    return spec(
        **sizes(config),
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 768),
        heads=config.take("num_attention_heads", 12),
        feedforward=config.take("intermediate_size", 3072),
        vocabulary=config.take("vocab_size", 50265),
        position=distances(config, position_key_bias=False),
    )


def sizes(config: Settings) -> dict[str, Any]:
    """What this family and its second version say in the same words, as arguments of `spec`."""
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("hidden_act", *ACTIVATIONS)
    config.require("pooler_hidden_act", *ACTIVATIONS)
    config.maybe("legacy", bool)  # which head stands on it; its tensors say so
    width = config.maybe("hidden_size", int)
    if width is not None:
        config.require("pooler_hidden_size", width)
    trained = config.take("max_position_embeddings", 512)
    added = config.take("position_biased_input", True)
    decoder = config.take("enhanced_mask_decoder", False)
    if added and decoder:
        raise UnknownArchitecture(
            f"{config.name} says enhanced_mask_decoder and position_biased_input are True, and a decoder "
            "needs positions that the embedding does not add; set position_biased_input to False"
        )
    return {
        "trained_tokens": trained,
        "positions": trained if added else 0,
        "decoder": trained if decoder else 0,
        "segments": config.take("type_vocab_size", 0),
        "embedding_width": config.maybe("embedding_size", int),
        "activation": ACTIVATIONS[config.take("hidden_act", "gelu")],
        "dropout": config.take("hidden_dropout_prob", 0.1),
        "attention_dropout": config.take("attention_probs_dropout_prob", 0.1),
        "eps": config.take("layer_norm_eps", 1e-7),
        "init_std": config.take("initializer_range", 0.02),
        "padding_id": config.maybe("pad_token_id", int),
    }


def distances(config: Settings, **more: Any) -> AttentionPosition:
    """What scores know of distances; ``more`` are fields of `Disentangled` that a version settles."""
    found = config.values.get("pos_att_type")
    config.maybe("pos_att_type", list if isinstance(found, list) else str)
    names = found.lower().split("|") if isinstance(found, str) else found or []
    names = [str(name).strip() for name in names]
    reach = config.take("max_relative_positions", -1)
    if len(set(names)) < len(names) or not set(names) <= TERMS.keys():
        raise UnknownArchitecture(f"{config.name} says pos_att_type is {found!r}; built are c2p and p2c")
    if not config.take("relative_attention", False):
        if names:
            raise UnknownArchitecture(
                f"{config.name} says relative_attention is False and pos_att_type {found!r}, "
                "which scales scores by terms that are not there"
            )
        return NoPosition()
    return Disentangled(
        max_distance=reach if reach >= 1 else config.take("max_position_embeddings", 512),
        content_to_position="c2p" in names,
        position_to_content="p2c" in names,
        table_dropout=config.take("hidden_dropout_prob", 0.1),
        **more,
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    return {"architectures": architectures("Deberta", encoder), "model_type": "deberta"} | settings(encoder)


def settings(encoder: EncoderSpec) -> dict[str, Any]:
    """The keys that this family and its second version share."""
    layer, embedding = encoder.layers[0], encoder.embedding
    mixer, network, norm = layer.mixer, feedforward_of(encoder), layer.norm
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(norm, LayerNorm)
    position, roles = mixer.position, {role_of(head) for head in encoder.heads}
    added = embedding.positions is not None and embedding.positions.added
    written = {
        "attention_probs_dropout_prob": mixer.dropout,
        "hidden_act": name_of(network.activation),
        "hidden_dropout_prob": layer.dropout,
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": network.width,
        "layer_norm_eps": norm.eps,
        "max_position_embeddings": encoder.trained_tokens,
        "num_attention_heads": mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": embedding.padding_id,
        "pooler_hidden_size": encoder.width,
        "pos_att_type": [],
        "position_biased_input": added,
        "relative_attention": isinstance(position, Disentangled),
        "type_vocab_size": embedding.segments,
        "vocab_size": embedding.vocabulary,
    }
    if isinstance(position, Disentangled):
        written["max_relative_positions"] = position.max_distance
        written["pos_att_type"] = [name for name, ours in TERMS.items() if getattr(position, ours)]
    if embedding.projection is not None:
        written["embedding_size"] = embedding.width
    if encoder.pooler is not None:
        written["pooler_hidden_act"] = name_of(encoder.pooler.activation)
    if embedding.positions is not None and not added and "masked" not in roles:
        written["enhanced_mask_decoder"] = True
    if roles & {"masked", "enhanced"}:
        written["legacy"] = "masked" in roles
    return written


def name_of(activation: Activation) -> str:
    """What config.json calls it."""
    return next(name for name, ours in ACTIVATIONS.items() if ours == activation)


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads, the pooler and the absolute positions that a checkpoint has tensors of."""
    refuse_choices(config)
    norm, activation = encoder.layers[0].norm, feedforward_of(encoder).activation
    pooler = Pooler(ACTIVATIONS[config.take("pooler_hidden_act", "gelu")])
    tokens = classifies_tokens(config)
    kept = shapes.get("embeddings.position_embeddings.weight")
    embedding = encoder.embedding
    if embedding.positions is None or not embedding.positions.added:
        positions = None if kept is None else LearnedPositions(kept[0], added=False)
        embedding = replace(embedding, positions=positions)
    return replace(
        encoder,
        embedding=embedding,
        pooler=pooler if "pooler.dense.weight" in shapes else None,
        heads=present(
            shapes,
            ("cls.predictions.transform.dense.weight", lambda w: MaskedLM(Transform(w, activation, norm))),
            (
                "lm_predictions.lm_head.dense.weight",
                lambda w: MaskedLM(Transform(w, activation, norm), enhanced=True),
            ),
            (
                "mask_predictions.dense.weight",
                lambda w: Classifier(
                    "replaced", 1, "tokens_and_first", Transform(w, activation), input_norm=norm
                ),
            ),
            (
                "classifier.weight",
                lambda c: (
                    Classifier("tokens", c, "tokens") if tokens else Classifier("sequence", c, "pooler")
                ),
            ),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With a predictor of masked words, as `transformers` counts it: without a decoder's positions."""
    return replace(
        encoder, heads=(MaskedLM(Transform(encoder.embedding.width, "gelu", encoder.layers[0].norm)),)
    )


def _of_each_head(encoder: EncoderSpec) -> tuple[int, ...]:
    mixer = encoder.layers[0].mixer
    return tuple(3 * head + part for part in range(3) for head in range(mixer.heads))


_LAYER = "encoder.layer.{l}."
_SELF = _LAYER + "attention.self."

SHARED_ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.embed_proj", "embedding.projection"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Rename("encoder.rel_embeddings", "distances.table"),
    Rename(_LAYER + "attention.output.dense", "layers.{l}.attention.out"),
    Rename(_LAYER + "attention.output.LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "intermediate.dense", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "output.dense", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "output.LayerNorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
    Rename("cls.predictions.transform.LayerNorm", "heads.masked.transform.norm"),
    Rename("cls.predictions.bias", "heads.masked.bias"),
    Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
    Copy("cls.predictions.decoder.bias", "heads.masked.bias"),
    Rename("lm_predictions.lm_head.dense", "heads.enhanced.transform.dense"),
    Rename("lm_predictions.lm_head.LayerNorm", "heads.enhanced.transform.norm"),
    Rename("lm_predictions.lm_head.bias", "heads.enhanced.bias"),
    Rename("mask_predictions.LayerNorm", "heads.replaced.norm"),
    Rename("mask_predictions.dense", "heads.replaced.transform.dense"),
    Rename("mask_predictions.classifier", "heads.replaced.out"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)
"""Names that the second version kept."""

ROWS = (
    *SHARED_ROWS,
    Reorder(_SELF + "in_proj", "layers.{l}.attention.qkv", _of_each_head),
    Rename(_SELF + "q_bias", "layers.{l}.attention.query_bias"),
    Rename(_SELF + "v_bias", "layers.{l}.attention.value_bias"),
    Rename(_SELF + "pos_proj", "layers.{l}.attention.distances.key"),
    Rename(_SELF + "pos_q_proj", "layers.{l}.attention.distances.query"),
)

_HE = "He et al. 2021"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)

DEBERTA = Family(
    name="deberta",
    model_types=("deberta",),
    paper=_HE,
    read=read,
    adapt=adapt,
    write=write,
    prefix="deberta.",
    rows=ROWS,
    published=(
        Published("microsoft/deberta-base", BASE, "MIT", _HE, pretraining(BASE)),
        Published("microsoft/deberta-large", LARGE, "MIT", _HE, pretraining(LARGE)),
    ),
    beside=("heads.", "pooler."),
)
