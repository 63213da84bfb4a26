"""JinaBERT (Günther et al. 2023), the encoder of jina-embeddings-v2 for English.

BERT with symmetric ALiBi instead of learned positions and a gated feed-forward network. Token types, heads
and the order of norms are BERT's. Its config.json also has model_type ``bert`` and is distinguished by
``feed_forward_type``. The encoder for code normalizes queries and keys over all heads, names its feed-forward
network otherwise and has its gate second; its config.json differs in the name of its code alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.families.bert import MASKED, NEXT_SENTENCE
from unmask.families.common import (
    ACTIVATIONS,
    ENCODER_KEYS,
    NO_DECODER,
    head_width_of,
    post_norm_encoder,
    with_every_layer,
)
from unmask.families.family import SEARCH, CheckpointInfo, Family, Release
from unmask.families.heads import CHOICE, POOLED_OR_TOKENS, SPAN
from unmask.spec import (
    Activation,
    Alibi,
    EncoderSpec,
    GatedFeedForward,
    LayerNorm,
    MaskedLM,
    Pooler,
    QueryKeyNorm,
    SoftmaxAttention,
    Transform,
)
from unmask.spec.config_keys import Key, KeyGroup, changed, name_of, only
from unmask.spec.tensor_map import Concat, Rename, Reorder

GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
"""config.json's ``feed_forward_type`` -> the activation of the gate."""

KEYS = (
    only("position_embedding_type", "alibi", written=True),
    *NO_DECODER,
    only("tie_word_embeddings", True),
    # hidden_act is the activation of the MLM head only.
    *changed(ENCODER_KEYS, hidden_act=...),
    Key("feed_forward_type", "activation", "geglu", GATES),
    Key("max_position_embeddings", "trained_tokens", 512),
)

_LAYER = "encoder.layer.{l}."
_SELF = _LAYER + "attention.self."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Concat((_SELF + "query", _SELF + "key", _SELF + "value"), "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attention.output.dense", "layers.{l}.attention.out"),
    Rename(_LAYER + "attention.output.LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "mlp.gated_layers", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.wo", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "mlp.layernorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)


def spec(
    *,
    width: int,
    heads: int,
    feedforward: int,
    activation: Activation,
    attention_dropout: float,
    **others: Any,
) -> EncoderSpec:
    """A JinaBERT of the given sizes; ``others`` are those of `post_norm_encoder`."""
    return post_norm_encoder(
        width=width,
        mixer=SoftmaxAttention(
            heads, head_width_of(width, heads), position=Alibi(), dropout=attention_dropout
        ),
        feedforward=GatedFeedForward(feedforward, activation, out_bias=True),
        **{"pooler": Pooler()} | others,
    )


def parts(info: CheckpointInfo) -> EncoderSpec:
    """The encoder unchanged; the head's key is checked even without a head."""
    info.config.require_one_of("hidden_act", *ACTIVATIONS)
    return info.encoder


def _masked(info: CheckpointInfo, width: int) -> MaskedLM:
    activation = ACTIVATIONS[info.config.get("hidden_act", "gelu")]
    return MaskedLM(Transform(width, activation, info.encoder.layers[0].norm))


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    return {} if head.transform is None else {"hidden_act": name_of(ACTIVATIONS, head.transform.activation)}


HEADS = (
    replace(MASKED, make=_masked, write=_write_masked),
    NEXT_SENTENCE,
    POOLED_OR_TOKENS,
    SPAN,
    CHOICE,
)

PUBLISHED = (
    Release(
        "jinaai/jina-embeddings-v2-small-en",
        {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 4},
        use=SEARCH,
    ),
    Release("jinaai/jina-embeddings-v2-base-en", use=SEARCH),
)

JINABERT = Family(
    name="jinabert",
    model_types=("bert",),
    stem="JinaBert",
    paper="Günther et al. 2023",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
    parts=parts,
    releases=PUBLISHED,
    released={"attention_probs_dropout_prob": 0.0, "max_position_embeddings": 8192, "vocab_size": 30528},
    distinguishing_keys=("feed_forward_type",),
)


CODE = "jinaai/jina-bert-v2-qk-post-norm"
"""The name of the authors' code, which config.json of the encoder for code has in ``auto_map`` or
``_name_or_path``."""

CODE_ROWS = (
    *(row for row in ROWS if "feedforward" not in row.ours and "attention_norm" not in row.ours),
    Rename(_SELF + "layer_norm_q", "layers.{l}.attention.query_norm"),
    Rename(_SELF + "layer_norm_k", "layers.{l}.attention.key_norm"),
    Rename(_LAYER + "attention.output.LayerNorm", "layers.{l}.attention_output_norm"),
    Rename(_LAYER + "layer_norm_1", "layers.{l}.attention_norm"),
    Reorder(_LAYER + "mlp.up_gated_layer", "layers.{l}.feedforward.inner", lambda encoder: (1, 0)),
    Rename(_LAYER + "mlp.down_layer", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "layer_norm_2", "layers.{l}.feedforward_norm"),
)


def code_spec(*, activation: Activation, eps: float, **sizes: Any) -> EncoderSpec:
    """A JinaBERT for code of the given sizes; ``sizes`` are other arguments of `spec`."""
    encoder = spec(activation=activation, eps=eps, **sizes)
    norm = QueryKeyNorm(LayerNorm(eps), "all")
    return with_every_layer(encoder, mixer={"query_key_norm": norm}, attention_sum_norm=True)


JINABERT_CODE = replace(
    JINABERT,
    name="jinabert-code",
    keys=(
        *(key for key in KEYS if not (isinstance(key, Key) and key.name == "feed_forward_type")),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        only("feed_forward_type", "geglu", written=True),
        KeyGroup(lambda config, arguments, compat: {}, lambda encoder: {"_name_or_path": CODE}),
    ),
    encoder_rows=CODE_ROWS,
    spec=code_spec,
    parts=lambda info: info.encoder,
    releases=(
        Release(
            "jinaai/jina-embeddings-v2-base-code",
            {"_name_or_path": CODE, "vocab_size": 61_056},
            use="search in code",
        ),
    ),
    roles=(),
    distinguishing_text=CODE,
)
