"""DistilBERT (Sanh et al. 2019): half of BERT's layers, distilled from it.

BERT's layers without token types and without a pooler; norms have an epsilon of 1e-12 in every checkpoint.
In training, dropout applies to attention's output as in BERT; the authors' code does not do that.
"""

from dataclasses import replace
from functools import partial

from unmask.families.bert import spec as bert_spec
from unmask.families.common import ACTIVATIONS, NO_DECODER
from unmask.families.family import Family, Release
from unmask.families.heads import SPAN, TOKENS, choice, dense_sequence, masked_words
from unmask.spec import Classifier, Transform
from unmask.spec.config_keys import Key
from unmask.spec.tensor_map import Concat, Ignore, Rename

KEYS = (
    *NO_DECODER,
    Key("activation", "activation", "gelu", ACTIVATIONS),
    Key("n_layers", "layers", 6),
    Key("dim", "width", 768),
    Key("n_heads", "heads", 12),
    Key("hidden_dim", "feedforward", 3072),
    Key("vocab_size", "vocabulary", 30522),
    Key("max_position_embeddings", "positions", 512),
    Key("dropout", "dropout", 0.1),
    Key("attention_dropout", "attention_dropout", 0.1),
    Key("initializer_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
)

_LAYER = "transformer.layer.{l}."
_ATTENTION = _LAYER + "attention."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Concat((_ATTENTION + "q_lin", _ATTENTION + "k_lin", _ATTENTION + "v_lin"), "layers.{l}.attention.qkv"),
    Rename(_ATTENTION + "out_lin", "layers.{l}.attention.out"),
    Rename(_LAYER + "sa_layer_norm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "ffn.lin1", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "ffn.lin2", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "output_layer_norm", "layers.{l}.feedforward_norm"),
)

spec = partial(bert_spec, segments=0, eps=1e-12, pooler=None)
"""A DistilBERT of the given sizes."""

_SEQUENCE = dense_sequence("relu", dense="pre_classifier", name="classifier")

HEADS = (
    masked_words("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector"),
    replace(
        _SEQUENCE,
        make=lambda info, classes: (
            _SEQUENCE.make(info, classes) if "pre_classifier.weight" in info.shapes else None
        ),
    ),
    replace(
        TOKENS,
        make=lambda info, classes: (
            None if "pre_classifier.weight" in info.shapes else TOKENS.make(info, classes)
        ),
    ),
    SPAN,
    choice(
        "pre_classifier",
        make=lambda info, classes: Classifier(
            "choice", classes, "first", Transform(info.encoder.width, "relu")
        ),
    ),
)

PUBLISHED = (Release("distilbert/distilbert-base-uncased"),)

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    stem="DistilBert",
    paper="Sanh et al. 2019",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="distilbert.",
    heads=HEADS,
    releases=PUBLISHED,
)
