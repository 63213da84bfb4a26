"""MosaicBERT (Portes et al. 2023).

BERT with symmetric ALiBi in the place of learned positions and GeGLU in that of the plain network. Segments
and the order of norms are BERT's. Its config.json says ``bert`` too and is told apart by
``alibi_starting_size``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import ACTIVATIONS
from unmask.model.families.family import Compat, Family, Published, Shapes, architectures, present
from unmask.model.spec import (
    Alibi,
    Classifier,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    MaskedLM,
    Pooler,
    SoftmaxAttention,
    Transform,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Copy, Rename
from unmask.settings import Settings


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 30528,
    segments: int = 2,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    eps: float = 1e-12,
    init_std: float = 0.02,
    padding_id: int | None = 0,
    trained_tokens: int | None = 512,
) -> EncoderSpec:
    """A MosaicBERT of the given sizes."""
    require_at_least("heads", heads, 1)
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    norm = LayerNorm(eps)
    layer = Layer(
        mixer=SoftmaxAttention(heads, width // heads, position=Alibi(), dropout=attention_dropout),
        feedforward=GatedFeedForward(feedforward, "gelu", out_bias=True),
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
    config.require("position_embedding_type", "absolute", "alibi")  # never read by its code: it is ALiBi
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("tie_word_embeddings", True)
    config.take("alibi_starting_size", 512)  # how far its own code prepares a table
    return spec(
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 768),
        heads=config.take("num_attention_heads", 12),
        feedforward=config.take("intermediate_size", 3072),
        vocabulary=config.take("vocab_size", 30522),
        segments=config.take("type_vocab_size", 2),
        dropout=config.take("hidden_dropout_prob", 0.1),
        attention_dropout=config.take("attention_probs_dropout_prob", 0.0),
        eps=config.take("layer_norm_eps", 1e-12),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
        trained_tokens=config.take("max_position_embeddings", 512),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    layer, embedding = encoder.layers[0], encoder.embedding
    assert isinstance(layer.mixer, SoftmaxAttention)
    assert isinstance(layer.norm, LayerNorm)
    written = {
        "alibi_starting_size": encoder.trained_tokens,
        "architectures": architectures("Bert", encoder),
        "attention_probs_dropout_prob": layer.mixer.dropout,
        "hidden_dropout_prob": layer.dropout,
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": layer.feedforward.width,
        "layer_norm_eps": layer.norm.eps,
        "max_position_embeddings": encoder.trained_tokens,
        "model_type": "bert",
        "num_attention_heads": layer.mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": embedding.padding_id,
        "position_embedding_type": "absolute",
        "type_vocab_size": embedding.segments,
        "vocab_size": embedding.vocabulary,
    }
    for head in encoder.heads:
        if isinstance(head, MaskedLM) and head.transform is not None:
            activation = head.transform.activation
            written["hidden_act"] = next(name for name, ours in ACTIVATIONS.items() if ours == activation)
    return written


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the pooler and the head that a checkpoint has. Its code has heads for words and for texts."""
    # The layers' own activation is fixed: only the head's follows the config, and its norm's eps does not.
    config.require("hidden_act", *ACTIVATIONS)
    activation = ACTIVATIONS[config.take("hidden_act", "gelu")]
    return replace(
        encoder,
        pooler=Pooler() if "pooler.dense.weight" in shapes else None,
        heads=present(
            shapes,
            (
                "cls.predictions.transform.dense.weight",
                lambda w: MaskedLM(Transform(w, activation, LayerNorm(1e-12))),
            ),
            ("classifier.weight", lambda c: Classifier("sequence", c, "pooler")),
        ),
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
    Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
    Rename("cls.predictions.transform.LayerNorm", "heads.masked.transform.norm"),
    Rename("cls.predictions.decoder.bias", "heads.masked.bias"),
    Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
    Rename("classifier", "heads.sequence.out"),
)

_PORTES = "Portes et al. 2023"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)

MOSAICBERT = Family(
    name="mosaicbert",
    model_types=("bert",),
    marks=("alibi_starting_size",),
    paper=_PORTES,
    read=read,
    adapt=adapt,
    write=write,
    prefix="bert.",
    rows=ROWS,
    published=(
        Published(
            "mosaicml/mosaic-bert-base",
            BASE,
            "Apache-2.0",
            _PORTES,
            replace(BASE, heads=(MaskedLM(Transform(768, "gelu", LayerNorm(1e-12))),)),
        ),
    ),
)
