"""BigBird (Zaheer et al. 2020), the ITC variant: BERT with GELU's tanh form and block-sparse attention.

Two outputs go by its name for texts longer than `Blocks.whole_up_to`, 704 tokens as published. The
authors draw each layer's random blocks once, from the layer's number, and use them in training and after.
`transformers` does so in training only; in evaluation all random blocks are block 0, which is then counted
four times. ``compat="published"`` is the former, ``compat="hf"`` the latter.

The plan depends on a text's length in whole blocks. The authors pad a batch to one length and draw for
that; here, as in `transformers`, every text is drawn for by its own length.

A head for answers is the authors' for TriviaQA: a feed-forward part with its residual. `transformers` also
subtracts 1e6 from the logits of the question's tokens; here that is left to whoever reads the logits.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.model.families.bert import ACTIVATIONS, ENCODER_ROWS, feedforward_of
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.bert import write as write_bert
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    predictor,
    present,
    refuse_choices,
    tying,
)
from unmask.model.spec import (
    Blocks,
    Classifier,
    EncoderSpec,
    MaskedLM,
    ResidualTransform,
    SoftmaxAttention,
    Transform,
    Whole,
)
from unmask.model.spec.rows import Copy, Ignore, Rename
from unmask.settings import Settings


def with_blocks(encoder: EncoderSpec, blocks: Blocks, *, drawn: bool) -> EncoderSpec:
    """A BERT whose layers see these blocks; with ``drawn``, layer l draws its random ones from seed l."""
    layers = []
    for number, layer in enumerate(encoder.layers):
        assert isinstance(layer.mixer, SoftmaxAttention)
        reach = replace(blocks, seed=number if drawn else None)
        layers.append(replace(layer, mixer=replace(layer.mixer, reach=reach)))
    return replace(encoder, layers=tuple(layers))


def spec(*, layers: int, width: int, heads: int, feedforward: int) -> EncoderSpec:
    """A BigBird of the given sizes: blocks of 64 tokens, three random ones, texts of at most 4,096 tokens."""
    encoder = bert_spec(
        layers=layers,
        width=width,
        heads=heads,
        feedforward=feedforward,
        vocabulary=50358,
        positions=4096,
        activation="gelu_tanh",
    )
    return with_blocks(encoder, Blocks(64), drawn=True)


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("rescale_embeddings", False)
    config.require("hidden_act", "gelu_new", *ACTIVATIONS)
    config.require("attention_type", "block_sparse", "original_full")
    positions = config.take("max_position_embeddings", 4096)
    encoder = bert_spec(
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 768),
        heads=config.take("num_attention_heads", 12),
        feedforward=config.take("intermediate_size", 3072),
        vocabulary=config.take("vocab_size", 50358),
        positions=positions,
        segments=config.take("type_vocab_size", 2),
        activation=ACTIVATIONS[config.take("hidden_act", "gelu_new")],
        dropout=config.take("hidden_dropout_prob", 0.1),
        attention_dropout=config.take("attention_probs_dropout_prob", 0.1),
        eps=config.take("layer_norm_eps", 1e-12),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
    )
    encoder = _with_biases(encoder, config.take("use_bias", True))
    block, count = config.take("block_size", 64), config.take("num_random_blocks", 3)
    if config.take("attention_type", "block_sparse") == "original_full":
        return encoder
    blocks = Blocks(block, count, plan_tokens=max(positions, block))
    return with_blocks(encoder, blocks, drawn=compat == "published")


def _with_biases(encoder: EncoderSpec, there: bool) -> EncoderSpec:
    layers = []
    for layer in encoder.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        mixer = replace(layer.mixer, query_bias=there, key_bias=there, value_bias=there)
        layers.append(replace(layer, mixer=mixer))
    return replace(encoder, layers=tuple(layers))


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    mixer = encoder.layers[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    keys = {
        **write_bert(encoder),
        **tying(encoder),
        "architectures": architectures("BigBird", encoder),
        "attention_type": "original_full" if isinstance(mixer.reach, Whole) else "block_sparse",
        "model_type": "big_bird",
        "rescale_embeddings": False,
        "use_bias": mixer.query_bias,
    }
    if isinstance(mixer.reach, Blocks):
        keys["block_size"] = mixer.reach.block
        keys["num_random_blocks"] = mixer.reach.random_blocks
    return keys


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads that a checkpoint has, and without the pooler where it has none."""
    refuse_choices(config)
    network, norm, width = feedforward_of(encoder), encoder.layers[0].norm, encoder.width
    activation = network.activation
    return replace(
        encoder,
        pooler=encoder.pooler if "pooler.weight" in shapes else None,
        heads=present(
            shapes,
            (
                "cls.predictions.transform.dense.weight",
                lambda w: predictor(
                    Transform(w, activation, norm), config, shapes, "cls.predictions.decoder"
                ),
            ),
            ("cls.seq_relationship.weight", lambda c: Classifier("next_sentence", c, "pooler")),
            (
                "classifier.out_proj.weight",
                lambda c: Classifier("sequence", c, "first", Transform(width, activation)),
            ),
            ("classifier.weight", lambda c: Classifier("tokens", c, "tokens")),
            (
                "qa_classifier.qa_outputs.weight",
                lambda c: Classifier("span", c, "tokens", ResidualTransform(network.width, activation, norm)),
            ),
        ),
    )


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the heads of its checkpoints: masked words and next sentence."""
    masked = MaskedLM(Transform(encoder.width, "gelu_tanh", encoder.layers[0].norm))
    return replace(encoder, heads=(masked, Classifier("next_sentence", 2, "pooler")))


ROWS = (
    *(row for row in ENCODER_ROWS if row != Rename("pooler.dense", "pooler.dense")),
    Rename("pooler", "pooler.dense"),
    Ignore("embeddings.token_type_ids", "a buffer of zeros, computed here"),
    Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
    Rename("cls.predictions.transform.LayerNorm", "heads.masked.transform.norm"),
    Rename("cls.predictions.bias", "heads.masked.bias"),
    Rename("cls.predictions.decoder", "heads.masked.decoder"),
    Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
    Copy("cls.predictions.decoder.bias", "heads.masked.bias"),
    Rename("cls.seq_relationship", "heads.next_sentence.out"),
    Rename("classifier.dense", "heads.sequence.transform.dense"),
    Rename("classifier.out_proj", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_classifier.intermediate.dense", "heads.span.transform.inner"),
    Rename("qa_classifier.output.dense", "heads.span.transform.outer"),
    Rename("qa_classifier.output.LayerNorm", "heads.span.transform.norm"),
    Rename("qa_classifier.qa_outputs", "heads.span.out"),
)

_ZAHEER = "Zaheer et al. 2020"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)


def _published(name: str, encoder: EncoderSpec) -> Published:
    return Published(name, encoder, "Apache-2.0", _ZAHEER, pretraining(encoder))


BIGBIRD = Family(
    name="bigbird",
    model_types=("big_bird",),
    paper=_ZAHEER,
    read=read,
    adapt=adapt,
    write=write,
    prefix="bert.",
    rows=ROWS,
    published=(
        _published("google/bigbird-roberta-base", BASE),
        _published("google/bigbird-roberta-large", LARGE),
    ),
    differs="in texts of more than 704 tokens the three random blocks are all block 0",
)
