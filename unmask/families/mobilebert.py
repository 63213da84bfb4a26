"""MobileBERT (Sun et al. 2020): thin layers between bottlenecks, several feed-forward networks in each, and
an embedding that reads the tokens on both sides of each.

In a padded batch, `transformers` lets the last token of a text read the vector of the padding id behind it.
Here zeros stand there, so the states are those that it computes for the text alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.common import (
    ENCODER_ROWS,
    activation_of,
    head_width_of,
    post_norm_encoder,
    with_every_layer,
)
from unmask.families.family import Family, Release
from unmask.families.heads import CHOICE_CLASS as CHOICE
from unmask.families.heads import SPAN, TOKENS, CheckpointInfo, HeadLayout, classifier, masked_words, tying
from unmask.spec import (
    Activation,
    Bottleneck,
    Classifier,
    ClassifierRole,
    EncoderSpec,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    MaskedLM,
    NoNorm,
    Norm,
    PlainFeedForward,
    Pooler,
    Projection,
    Reads,
    SoftmaxAttention,
    StackedFeedForward,
    Transform,
)
from unmask.spec.check import require_eps, require_size
from unmask.spec.config_keys import Arguments, Compat, Field, Key, KeyGroup, changed, in_range, name_of
from unmask.spec.parts import MOST_NETWORKS, AttentionInput
from unmask.spec.tensor_map import Concat, Ignore, Rename, TensorRule

EPS = 1e-12
"""The default of ``layer_norm_eps``."""
FIXED_EPS = 1e-5
"""Of the norms of the embedding and of a layer's last network, which its authors' code does not set."""
NARROW = 128
"""The default of ``intra_bottleneck_size``."""


def _read_bottleneck(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    used, width = config.get("use_bottleneck", True), arguments["width"]
    narrow = config.get("intra_bottleneck_size", NARROW)
    in_range(config, "intra_bottleneck_size", narrow, require_size)
    reduced, shared = (
        config.get("use_bottleneck_attention", False),
        config.get("key_query_shared_bottleneck", True),
    )
    attention: AttentionInput = "narrow" if reduced else "shared" if shared else "input"
    inner = narrow if used else width
    stated = config.get("true_hidden_size", inner)
    if stated != inner:
        raise UnknownArchitecture(
            f"{config.name} says use_bottleneck is {str(used).lower()} and true_hidden_size is {stated}; "
            f"it must be {'intra_bottleneck_size' if used else 'hidden_size'}, which is {inner}"
        )
    if used and attention == "input" and inner != width:
        raise UnknownArchitecture(
            f"{config.name} says use_bottleneck_attention and key_query_shared_bottleneck are false, with "
            f"intra_bottleneck_size {narrow} and hidden_size {width}; their code builds such layers only "
            "where both sizes are equal"
        )
    heads = arguments["heads"]
    if inner % heads:
        raise UnknownArchitecture(
            f"{config.name} says num_attention_heads is {heads}; it must divide "
            f"{'intra_bottleneck_size' if used else 'hidden_size'}, which is {inner}"
        )
    return {"bottleneck": Bottleneck(inner, attention) if used else None}


def _write_bottleneck(encoder: EncoderSpec) -> Mapping[str, Any]:
    layer = encoder.layers[0]
    bottleneck, inner = layer.bottleneck, layer.inner_width(encoder.width)
    mixed = layer.mixer.heads * layer.mixer.head_width
    if mixed != inner:
        raise UnknownArchitecture(
            f"a config.json of this family cannot say that heads have {mixed} features together; they have "
            f"as many as the states that attention adds to, which is {inner}"
        )
    return {
        "use_bottleneck": bottleneck is not None,
        "intra_bottleneck_size": NARROW if bottleneck is None else bottleneck.width,
        "use_bottleneck_attention": bottleneck is not None and bottleneck.attention == "narrow",
        "key_query_shared_bottleneck": bottleneck is None or bottleneck.attention == "shared",
        "true_hidden_size": inner,
    }


NORMS: Mapping[str, Norm] = {"no_norm": NoNorm(), "layer_norm": LayerNorm(FIXED_EPS)}


def _read_norm(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    config.require_one_of("normalization_type", *NORMS)
    kind, eps = config.get("normalization_type", "no_norm"), config.get("layer_norm_eps", EPS)
    in_range(config, "layer_norm_eps", eps, require_eps)
    if kind == "layer_norm" and eps != FIXED_EPS:
        raise UnknownArchitecture(
            f"{config.name} says normalization_type is layer_norm and layer_norm_eps {eps:g}; only "
            f"{FIXED_EPS:g} is built, which their code takes for some of the norms whatever it says"
        )
    return {"norm": NORMS[kind]}


def _write_norm(encoder: EncoderSpec) -> Mapping[str, Any]:
    norm = encoder.layers[0].norm
    eps = norm.eps if isinstance(norm, LayerNorm) else EPS
    return {"normalization_type": name_of(NORMS, norm), "layer_norm_eps": eps}


def _read_pooler(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    return {"pooler": Pooler() if config.get("classifier_activation", True) else None}


def _write_pooler(encoder: EncoderSpec) -> Mapping[str, Any]:
    first = any(isinstance(head, Classifier) and head.reads == "first" for head in encoder.heads)
    return {"classifier_activation": encoder.pooler is not None and not first}


def _networks_of(encoder: EncoderSpec) -> int:
    network = encoder.layers[0].feedforward
    return network.count if isinstance(network, StackedFeedForward) else 1


def _most_networks(name: str, value: int) -> None:
    require_size(name, value, most=MOST_NETWORKS)


KEYS = (
    *changed(
        BERT_KEYS,
        hidden_act="relu",
        num_hidden_layers=24,
        hidden_size=512,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        layer_norm_eps=...,
    ),
    Key("embedding_size", "embedding_width", 128),
    Key("trigram_input", "trigram", True, field=Field(lambda encoder: encoder.embedding.reads_neighbors)),
    Key("num_feedforward_networks", "networks", 4, field=Field(_networks_of, _most_networks)),
    KeyGroup(_read_bottleneck, _write_bottleneck),
    KeyGroup(_read_norm, _write_norm),
    KeyGroup(_read_pooler, _write_pooler),
)


def _reads_shared(encoder: EncoderSpec) -> bool:
    bottleneck = encoder.layers[0].bottleneck
    return bottleneck is not None and bottleneck.attention == "shared"


def _has_network(number: int) -> Callable[[EncoderSpec], bool]:
    """Whether layers have so many networks before the last."""
    return lambda encoder: _networks_of(encoder) > number


_LAYER = "encoder.layer.{l}."
_SELF = _LAYER + "attention.self."
_TOGETHER = Concat((_SELF + "query", _SELF + "key", _SELF + "value"), "layers.{l}.attention.qkv")


def _mapped(theirs: str, ours: str, norm: str) -> tuple[Rename, Rename]:
    """A linear map and its norm."""
    return Rename(f"{_LAYER}{theirs}.dense", ours), Rename(f"{_LAYER}{theirs}.LayerNorm", norm)


def _earlier(number: int) -> tuple[Rename, ...]:
    """The names of a network before the last."""
    theirs, ours = f"{_LAYER}ffn.{number}.", f"layers.{{l}}.feedforward.earlier.{number}."
    there = _has_network(number + 1)
    return (
        Rename(theirs + "intermediate.dense", ours + "inner", there),
        Rename(theirs + "output.dense", ours + "outer", there),
        Rename(theirs + "output.LayerNorm", ours + "norm", there),
    )


_QKV = "layers.{l}.attention.qkv."
_NARROW = "layers.{l}.bottleneck."

ROWS: tuple[TensorRule, ...] = (
    *(row for row in ENCODER_ROWS if row != _TOGETHER),
    replace(_TOGETHER, where=lambda encoder: not _reads_shared(encoder)),
    Rename("embeddings.embedding_transformation", "embedding.projection"),
    *_mapped("bottleneck.input", _NARROW + "inner", _NARROW + "inner_norm"),
    *_mapped("output.bottleneck", _NARROW + "outer", _NARROW + "outer_norm"),
    *_mapped("bottleneck.attention", _QKV + "shared", _QKV + "shared_norm"),
    Concat((_SELF + "query", _SELF + "key"), _QKV + "queries_keys", where=_reads_shared),
    Rename(_SELF + "value", _QKV + "values", _reads_shared),
    *(row for number in range(MOST_NETWORKS - 1) for row in _earlier(number)),
    Ignore(
        "encoder.layer.*.bottleneck.attention.*", "a map of queries and keys that no layer reads (narrow)"
    ),
)


def spec(
    *,
    width: int,
    embedding_width: int,
    trigram: bool,
    heads: int,
    feedforward: int,
    networks: int,
    activation: Activation,
    attention_dropout: float,
    dropout: float,
    positions: int,
    bottleneck: Bottleneck | None,
    norm: Norm,
    **others: Any,
) -> EncoderSpec:
    """A MobileBERT of the given sizes; ``others`` are those of `post_norm_encoder`."""
    if embedding_width >= width:
        raise UnknownArchitecture(
            f"embedding_size is {embedding_width} and hidden_size {width}; embedding_size must be smaller, "
            "because a masked-LM head has a matrix for the features by which they differ"
        )
    if dropout and networks > 1 and bottleneck is None:
        raise UnknownArchitecture(
            f"hidden_dropout_prob is {dropout}, num_feedforward_networks {networks} and use_bottleneck "
            "false; dropout of the last of several networks alone is not built"
        )
    network: FeedForward = PlainFeedForward(feedforward, activation)
    if networks > 1:
        network = StackedFeedForward(PlainFeedForward(feedforward, activation), networks, norm)
    inner = width if bottleneck is None else bottleneck.width
    encoder = post_norm_encoder(
        width=width,
        mixer=SoftmaxAttention(heads, head_width_of(inner, heads), dropout=attention_dropout),
        feedforward=network,
        eps=FIXED_EPS,
        dropout=0.0,
        positions=LearnedPositions(positions),
        embedding_width=embedding_width,
        projection=Projection(before_norm=True, words_alone=True, neighbors=int(trigram)),
        **others,
    )
    encoder = replace(encoder, embedding=replace(encoder.embedding, norm=norm, dropout=dropout))
    return with_every_layer(encoder, norm=norm, bottleneck=bottleneck, dropout=dropout)


_MASKED = masked_words(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder",
)


def _masked(info: CheckpointInfo, first: int) -> MaskedLM:
    """The embedding's features of a word, and beside them as many of its own as states are wider."""
    head, encoder = _MASKED.make(info, first), info.encoder
    assert isinstance(head, MaskedLM)
    norm = LayerNorm(info.config.get("layer_norm_eps", EPS))
    transform = Transform(encoder.width, activation_of(encoder), norm)
    return replace(head, transform=transform, beside=encoder.width - encoder.embedding.width)


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    norm = None if head.transform is None else getattr(head.transform, "norm", None)
    if not isinstance(norm, LayerNorm):
        raise UnknownArchitecture(
            "a config.json of this family cannot say that a masked-LM head has no LayerNorm; give it one"
        )
    return {**tying(head), "layer_norm_eps": norm.eps}


def _state(info: CheckpointInfo) -> Reads:
    """What a classifier of texts reads: the pooler's state, or that of the first token where the config says
    that nothing follows it.
    """
    never = info.encoder.pooler is None and not info.shapes
    return "first" if never or not info.config.get("classifier_activation", True) else "pooler"


def _of_text(role: ClassifierRole, name: str) -> HeadLayout:
    return classifier(role, name, lambda info, classes: Classifier(role, classes, _state(info)))


_SEQUENCE = _of_text("sequence", "classifier")

HEADS = (
    replace(
        _MASKED,
        make=_masked,
        rows=(*_MASKED.rows, Rename("cls.predictions.dense", "heads.masked.beside")),
        write=_write_masked,
    ),
    _of_text("next_sentence", "cls.seq_relationship"),
    HeadLayout(
        "classifier.weight",
        ("sequence", "tokens"),
        lambda info, classes: (TOKENS if info.saved_from("TokenClassification") else _SEQUENCE).make(
            info, classes
        ),
        (*_SEQUENCE.rows, *TOKENS.rows),
    ),
    SPAN,
    replace(_of_text("choice", "classifier"), of_class=CHOICE),
)

MOBILEBERT = Family(
    name="mobilebert",
    model_types=("mobilebert",),
    stem="MobileBert",
    paper="Sun et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="mobilebert.",
    heads=HEADS,
    releases=(Release("google/mobilebert-uncased"),),
    released={"classifier_activation": False},
    roles=("masked", "next_sentence"),
)
