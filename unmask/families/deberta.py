"""DeBERTa (He, Liu, Gao & Chen 2021): attention scores separate content and distance ("disentangled").

Post-norm layers with exact GELU. Query, key and value come from one projection, grouped by head, with biases
on queries and values only. Each layer projects the shared distance table with its own matrices. Checkpoints
were trained with an enhanced mask decoder, which uses absolute positions (`unmask.encoder.decoder`). Its head
(``lm_predictions``) requires a position table that the embedding does not add; if a checkpoint has no such
table, the head reads the last hidden states, as in `transformers` with ``legacy=False``. The key
``enhanced_mask_decoder``, which only unmask uses, requests the table in the config of a new encoder.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture, quoted
from unmask.families.bert import MASKED as BERT_MASKED
from unmask.families.common import (
    ACTIVATIONS as BERT_ACTIVATIONS,
)
from unmask.families.common import (
    ENCODER_KEYS,
    ENCODER_ROWS,
    LARGE,
    NO_DECODER,
    activation_of,
    head_width_of,
    post_norm_encoder,
)
from unmask.families.family import CheckpointInfo, Family, Release
from unmask.families.heads import POOLED_OR_TOKENS, SPAN, HeadLayout
from unmask.spec import (
    Activation,
    AttentionPosition,
    Classifier,
    Disentangled,
    EncoderSpec,
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
from unmask.spec.config_keys import (
    FIELDS,
    Arguments,
    Compat,
    Key,
    KeyGroup,
    changed,
    in_range,
    name_of,
    only,
    softmax_of,
)
from unmask.spec.tensor_map import Concat, Rename, Reorder

ACTIVATIONS: dict[str, Activation] = {**BERT_ACTIVATIONS, "tanh": "tanh"}
"""BERT's activations, plus tanh, the default of later convolutions."""

TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}
"""``pos_att_type`` -> ours."""


def _read_embedding(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    width, encoder_width = config.get_optional("embedding_size", int), arguments["width"]
    if width is not None:
        in_range(config, "embedding_size", width, FIELDS["embedding_width"].check)
    added = config.get("position_biased_input", True)
    decoder = config.get("enhanced_mask_decoder", False)
    if added and decoder:
        raise UnknownArchitecture(
            f"{config.name} says enhanced_mask_decoder and position_biased_input are True, and the decoder "
            "needs positions that the embedding does not add; set position_biased_input to False"
        )
    positions = LearnedPositions(arguments["trained_tokens"], added=added) if added or decoder else None
    return {
        "embedding_width": width,
        "projection": Projection(bias=False, before_norm=True)
        if width not in (None, encoder_width)
        else None,
        "positions": positions,
    }


def _write_embedding(encoder: EncoderSpec) -> Mapping[str, Any]:
    embedding = encoder.embedding
    added = embedding.positions is not None and embedding.positions.added
    written: dict[str, Any] = {"position_biased_input": added}
    if (
        embedding.positions is not None
        and not added
        and not any(role_of(h) == "masked" for h in encoder.heads)
    ):
        written["enhanced_mask_decoder"] = True
    return written | ({} if embedding.projection is None else {"embedding_size": embedding.width})


def _read_pooler(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Gives no argument: tensors determine whether there is a pooler, and which head ``legacy`` means."""
    config.require_one_of("pooler_hidden_act", *ACTIVATIONS)
    if "hidden_size" in config.values:
        config.require_one_of("pooler_hidden_size", arguments["width"])
    config.get_optional("legacy", bool)
    return {}


def _write_pooler(encoder: EncoderSpec) -> Mapping[str, Any]:
    activation = (
        {}
        if encoder.pooler is None
        else {"pooler_hidden_act": name_of(ACTIVATIONS, encoder.pooler.activation)}
    )
    return {"pooler_hidden_size": encoder.width} | activation


def distances(config: JsonSettings, arguments: Arguments, **more: Any) -> AttentionPosition:
    """The position specification of the scores; ``more`` are fields of `Disentangled` set by the version."""
    value = config.values.get("pos_att_type")
    config.get_optional("pos_att_type", list if isinstance(value, list) else str)
    names = value.lower().split("|") if isinstance(value, str) else value or []
    names = [str(name).strip() for name in names]
    pattern = config.get("max_relative_positions", -1)
    if len(set(names)) < len(names) or not set(names) <= TERMS.keys():
        raise UnknownArchitecture(
            f"{config.name} says pos_att_type is {quoted(value)}; built are c2p and p2c"
        )
    if not config.get("relative_attention", False):
        if names:
            raise UnknownArchitecture(
                f"{config.name} says relative_attention is False and pos_att_type {quoted(value)}, "
                "which scales scores by terms that do not exist"
            )
        return NoPosition()
    return Disentangled(
        max_distance=pattern if pattern >= 1 else arguments["trained_tokens"],
        content_to_position="c2p" in names,
        position_to_content="p2c" in names,
        table_dropout=arguments["dropout"],
        **more,
    )


def write_distances(encoder: EncoderSpec) -> dict[str, Any]:
    """The keys that `distances` reads."""
    position = softmax_of(encoder).position
    if not isinstance(position, Disentangled):
        return {"pos_att_type": [], "relative_attention": False}
    return {
        "max_relative_positions": position.max_distance,
        "pos_att_type": [name for name, ours in TERMS.items() if getattr(position, ours)],
        "relative_attention": True,
    }


SHARED_KEYS = (
    *NO_DECODER,
    *changed(
        ENCODER_KEYS,
        hidden_act=...,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
    ),
    Key("hidden_act", "activation", "gelu", ACTIVATIONS),
    Key("max_position_embeddings", "trained_tokens", 512),
    KeyGroup(_read_embedding, _write_embedding),
    KeyGroup(_read_pooler, _write_pooler),
)
"""Keys that the second version kept."""

KEYS = (
    only("talking_head", False),
    *changed(SHARED_KEYS, vocab_size=50265),
    KeyGroup(
        lambda config, arguments, compat: {"position": distances(config, arguments, position_key_bias=False)},
        write_distances,
    ),
)


def _of_each_head(encoder: EncoderSpec) -> tuple[int, ...]:
    mixer = encoder.layers[0].mixer
    return tuple(3 * head + part for part in range(3) for head in range(mixer.heads))


SHARED_ROWS = (
    *(row for row in ENCODER_ROWS if not isinstance(row, Concat)),
    Rename("embeddings.embed_proj", "embedding.projection"),
    Rename("encoder.rel_embeddings", "distances.table"),
)
"""Tensor names that the second version kept."""

_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    *SHARED_ROWS,
    Reorder(_SELF + "in_proj", "layers.{l}.attention.qkv", _of_each_head),
    Rename(_SELF + "q_bias", "layers.{l}.attention.query_bias"),
    Rename(_SELF + "v_bias", "layers.{l}.attention.value_bias"),
    Rename(_SELF + "pos_proj", "layers.{l}.attention.distances.key"),
    Rename(_SELF + "pos_q_proj", "layers.{l}.attention.distances.query"),
)


def spec(
    *,
    width: int,
    heads: int,
    feedforward: int,
    activation: Activation,
    position: AttentionPosition,
    attention_dropout: float,
    head_width: int | None = None,
    key_bias: bool = False,
    **others: Any,
) -> EncoderSpec:
    """A DeBERTa of the given sizes; ``others`` are those of `post_norm_encoder`.

    ``head_width`` is None if heads divide the width evenly.
    """
    equal = head_width_of(width, heads)
    mixer = SoftmaxAttention(
        heads,
        equal if head_width is None else head_width,
        position=position,
        key_bias=key_bias,
        dropout=attention_dropout,
    )
    network = PlainFeedForward(feedforward, activation)
    return post_norm_encoder(width=width, mixer=mixer, feedforward=network, **others)


def parts(info: CheckpointInfo) -> EncoderSpec:
    """Add the pooler's activation, and the absolute positions that a checkpoint stores for its decoder."""
    encoder, embedding = info.encoder, info.encoder.embedding
    pooler = Pooler(ACTIVATIONS[info.config.get("pooler_hidden_act", "gelu")])
    table_shape = info.shapes.get("embeddings.position_embeddings.weight")
    if embedding.positions is None or not embedding.positions.added:
        positions = None if table_shape is None else LearnedPositions(table_shape[0], added=False)
        embedding = replace(embedding, positions=positions)
    return replace(encoder, embedding=embedding, pooler=pooler if encoder.pooler else None)


def _enhanced(info: CheckpointInfo, width: int) -> MaskedLM:
    transform = Transform(width, activation_of(info.encoder), info.encoder.layers[0].norm)
    return MaskedLM(transform, enhanced=True)


def _replaced(info: CheckpointInfo, width: int) -> Classifier:
    norm = info.encoder.layers[0].norm
    transform = Transform(width, activation_of(info.encoder))
    return Classifier("replaced", 1, "tokens_and_first", transform, input_norm=norm)


HEADS = (
    replace(BERT_MASKED, write=lambda head: {"legacy": True, **BERT_MASKED.write(head)}),
    HeadLayout(
        "lm_predictions.lm_head.dense.weight",
        ("enhanced",),
        _enhanced,
        (
            Rename("lm_predictions.lm_head.dense", "heads.enhanced.transform.dense"),
            Rename("lm_predictions.lm_head.LayerNorm", "heads.enhanced.transform.norm"),
            Rename("lm_predictions.lm_head.bias", "heads.enhanced.bias"),
        ),
        lambda head: {"legacy": False},
    ),
    HeadLayout(
        "mask_predictions.dense.weight",
        ("replaced",),
        _replaced,
        (
            Rename("mask_predictions.LayerNorm", "heads.replaced.norm"),
            Rename("mask_predictions.dense", "heads.replaced.transform.dense"),
            Rename("mask_predictions.classifier", "heads.replaced.out"),
        ),
    ),
    POOLED_OR_TOKENS,
    SPAN,
)

DISENTANGLED = {
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
    "relative_attention": True,
}
"""Settings of every published checkpoint."""

PUBLISHED = (
    Release("microsoft/deberta-base"),
    Release("microsoft/deberta-large", LARGE),
)

DEBERTA = Family(
    name="deberta",
    model_types=("deberta",),
    stem="Deberta",
    paper="He et al. 2021",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="deberta.",
    heads=HEADS,
    releases=PUBLISHED,
    released=DISENTANGLED,
    license="MIT",
    parts=parts,
    outside_prefix=("heads.", "pooler."),
)
