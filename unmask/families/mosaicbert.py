"""MosaicBERT (Portes et al. 2023).

BERT with symmetric ALiBi instead of learned positions and GeGLU instead of the plain feed-forward network.
Token types and the order of norms are BERT's. Its config.json also has model_type ``bert`` and is
distinguished by ``alibi_starting_size``.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import (
    ACTIVATIONS,
    ENCODER_KEYS,
    NO_DECODER,
    head_width_of,
    post_norm_encoder,
)
from unmask.families.family import CheckpointInfo, Family, Release
from unmask.families.heads import HeadLayout, pooled
from unmask.spec import (
    Alibi,
    EncoderSpec,
    GatedFeedForward,
    LayerNorm,
    MaskedLM,
    SoftmaxAttention,
    Transform,
)
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, changed, name_of, only
from unmask.spec.tensor_map import Copy, Rename


def _read_table(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The size of a table in the authors' code; gives no argument."""
    config.get("alibi_starting_size", 512)
    return {}


KEYS = (
    only("position_embedding_type", "absolute", "alibi", written=True),  # its code never reads it
    *NO_DECODER,
    only("tie_word_embeddings", True),
    # The layers' activation is fixed: only the head's follows the config.
    *changed(ENCODER_KEYS, hidden_act=..., attention_probs_dropout_prob=0.0),
    Key("max_position_embeddings", "trained_tokens", 512),
    KeyGroup(_read_table, lambda encoder: {"alibi_starting_size": encoder.trained_tokens}),
)

_LAYER = "encoder.layer.{l}."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Rename(_LAYER + "attention.self.Wqkv", "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attention.output.dense", "layers.{l}.attention.out"),
    Rename(_LAYER + "attention.output.LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "mlp.gated_layers", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.wo", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "mlp.layernorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)


def spec(*, width: int, heads: int, feedforward: int, attention_dropout: float, **others: Any) -> EncoderSpec:
    """A MosaicBERT of the given sizes; ``others`` are those of `post_norm_encoder`."""
    mixer = SoftmaxAttention(heads, head_width_of(width, heads), position=Alibi(), dropout=attention_dropout)
    network = GatedFeedForward(feedforward, "gelu", out_bias=True)
    return post_norm_encoder(width=width, mixer=mixer, feedforward=network, **others)


def parts(info: CheckpointInfo) -> EncoderSpec:
    """The encoder unchanged; the head's key is checked even without a head."""
    info.config.require_one_of("hidden_act", *ACTIVATIONS)
    return info.encoder


def _masked(info: CheckpointInfo, width: int) -> MaskedLM:
    """The MLM head; the epsilon of its norm does not follow the config."""
    activation = ACTIVATIONS[info.config.get("hidden_act", "gelu")]
    return MaskedLM(Transform(width, activation, LayerNorm(1e-12)))


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    return {} if head.transform is None else {"hidden_act": name_of(ACTIVATIONS, head.transform.activation)}


HEADS = (
    HeadLayout(
        "cls.predictions.transform.dense.weight",
        ("masked",),
        _masked,
        (
            Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
            Rename("cls.predictions.transform.LayerNorm", "heads.masked.transform.norm"),
            Rename("cls.predictions.decoder.bias", "heads.masked.bias"),
            Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
        ),
        _write_masked,
    ),
    pooled("sequence", "classifier"),
)
"""The authors' code has MLM and sequence classification heads."""

PUBLISHED = (Release("mosaicml/mosaic-bert-base", {"vocab_size": 30528}),)

MOSAICBERT = Family(
    name="mosaicbert",
    model_types=("bert",),
    stem="Bert",
    paper="Portes et al. 2023",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
    parts=parts,
    releases=PUBLISHED,
    distinguishing_keys=("alibi_starting_size",),
)
