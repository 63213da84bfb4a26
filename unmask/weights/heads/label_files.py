"""Read folders of GLiNER and GLiClass: an encoder, and a head for labels that are named with the text, of
spans or of the whole text. Free of torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families import FAMILIES, Family
from unmask.families.common import ACTIVATIONS
from unmask.spec import Activation, ClassHead, EncoderSpec, LabelHead, SchemaHead
from unmask.spec.check import require_size
from unmask.spec.config_keys import in_range, name_of
from unmask.spec.heads import LabelScorer, TextPooling
from unmask.spec.tensor_map import Rename
from unmask.weights.heads.schema_files import SCHEMA_TYPE, read_schema_config, split_schema_tensors
from unmask.weights.tensors import StoredTensor

LABEL_CONFIG = "gliner_config.json"

LABEL_TOKENIZER = "labels_encoder"
"""The folder inside the checkpoint's with the tokenizer of the encoder of labels. gliner writes none, and
takes the tokenizer of the model that the key of this name names."""

ENCODER, LABEL_ENCODER = "token_rep_layer.bert_layer.model.", "token_rep_layer.labels_encoder.model."
"""The prefixes of the tensors of the encoder, and of that of the labels."""

SCORES = {"markerV0": "spans", "token_level": "words", "token-level": "words"}
"""Values of ``span_mode``."""

CLASS_TYPE = "GLiClass"
"""The ``model_type`` of folders of gliclass, whose config.json describes the head."""

CLASS_ENCODER, OF_CLASSES = "model.encoder_model.", "model."
"""The prefixes of the tensors of the encoder, and of those of the head."""

SEGMENTS = "segment_embeddings"
"""The table of token types, which gliclass stores with the head and adds to the encoder's embedding."""

SEGMENT_COUNT = 3
"""Its rows: for what stands before the separator, for what follows, and for examples, which are not read."""

SCORERS: Mapping[str, LabelScorer] = {"simple": "dot", "weighted-dot": "weighted_dot", "mlp": "network"}
"""Values of ``scorer_type``."""

POOLINGS: Mapping[str, TextPooling] = {
    "first": "first",
    "last": "last",
    "avg": "mean",
    "max": "max",
    "sum": "sum",
    "rms": "root_mean_square",
    "abs_max": "max_size",
    "abs_avg": "mean_size",
}
"""Values of ``pooling_strategy``."""

NETWORK = 256
"""The width of the scoring network; gliclass reads no key for it."""

EXPANSION = 4
"""Two dense layers widen a vector to so many times the width of their result between them."""

NOT_BUILT = {
    "labels_decoder": "labels are generated",
    "relations_layer": "relations are found",
    "post_fusion_schema": "vectors of words and labels attend to each other",
    "fuse_layers": "states of several layers are mixed",
}
"""Keys that ask for parts which are not built, and what they do."""


def read_label_config(config: JsonSettings) -> tuple[JsonSettings, LabelHead, JsonSettings | None]:
    """The encoder's config.json, the head that gliner_config.json describes, and the config.json of the
    encoder of labels; None if labels stand before the words.

    Raises:
        UnknownArchitecture: it asks for a part that is not built, or names no known encoder.
        CorruptCheckpoint: a value has the wrong type, or is outside its range.
    """
    for key, what in NOT_BUILT.items():
        if config.values.get(key):
            raise UnknownArchitecture(
                f"{LABEL_CONFIG} says {key} is {quoted(config.values[key])}, with which {what}; this is not "
                "built, so use a checkpoint without it"
            )
    config.require_one_of("subtoken_pooling", "first")
    config.require_one_of("words_splitter_type", "whitespace")
    config.require_one_of("span_mode", *SCORES)
    scores = SCORES[config.get("span_mode", "markerV0")]
    sizes = {"max_width": 12, "max_len": 384, "hidden_size": 512}
    for key, default in sizes.items():
        sizes[key] = config.get(key, default)
        in_range(config, key, sizes[key], require_size)
    of_labels = None
    if config.get_optional("labels_encoder", str):
        of_labels = JsonSettings(f"labels_encoder_config in {LABEL_CONFIG}", _label_encoder_keys(config))
    head = LabelHead(
        width=sizes["hidden_size"],
        scores="spans" if scores == "spans" else "words",
        max_width=sizes["max_width"],
        max_words=sizes["max_len"],
        rnn_layers=config.get("num_rnn_layers", 1),
        entity=config.get("ent_token", "<<ENT>>"),
        separator=config.get("sep_token", "<<SEP>>"),
        reads_entity=config.get("embed_ent_token", True),
    )
    if head.rnn_layers < 0 or (head.rnn_layers and head.width % 2):
        raise CorruptCheckpoint(
            f"{LABEL_CONFIG} says num_rnn_layers is {head.rnn_layers} and hidden_size is {head.width}; the "
            "layers cannot be fewer than 0, and need an even size"
        )
    return JsonSettings(f"encoder_config in {LABEL_CONFIG}", _encoder_keys(config)), head, of_labels


def written_label_config(
    head: LabelHead, config: Mapping[str, Any], encoder: Mapping[str, Any], marker_id: int | None
) -> dict[str, Any]:
    """The contents of gliner_config.json; `read_label_config` reads them back.

    Args:
        head: the head.
        config: of the file that it was read from, whose other keys are kept; empty for a new head.
        encoder: the keys of the encoder's config.json.
        marker_id: the id of the token before each label; None if labels have an encoder of their own.
    """
    markers = {"class_token_index": marker_id, "vocab_size": encoder.get("vocab_size")}
    return {
        "model_name": encoder["model_type"],
        "dropout": 0.4,
        "fine_tune": True,
        "fuse_layers": False,
        "name": "gliner",
        "post_fusion_schema": "",
        "subtoken_pooling": "first",
        "words_splitter_type": "whitespace",
        **config,
        **({} if marker_id is None else markers),
        "embed_ent_token": head.reads_entity,
        "encoder_config": dict(encoder),
        "ent_token": head.entity,
        "hidden_size": head.width,
        "max_len": head.max_words,
        "max_width": head.max_width,
        "num_rnn_layers": head.rnn_layers,
        "sep_token": head.separator,
        "span_mode": next(name for name, scores in SCORES.items() if scores == head.scores),
    }


def _encoder_keys(config: JsonSettings) -> dict[str, object]:
    """The keys of the encoder's config.json, with the size of the vocabulary if markers made it grow."""
    size = config.get_optional("vocab_size", int)
    grown = {} if size is None or size < 1 else {"vocab_size": size}
    named = "model_name" if config.name == LABEL_CONFIG else "encoder_model_name"
    return {**_keys(config, "encoder_config", named), **grown}


def _label_encoder_keys(config: JsonSettings) -> dict[str, object]:
    return _keys(config, "labels_encoder_config", "labels_encoder")


def _keys(config: JsonSettings, stored: str, named: str) -> dict[str, object]:
    """The keys of a config.json: those in the file, or those of the published model that it names."""
    keys = config.get_optional(stored, dict)
    if keys is None:
        name = config.get(named, "")
        published = {entry.name: (family, entry) for family in FAMILIES for entry in family.published}
        if name not in published:
            raise UnknownArchitecture(
                f"{config.name} has no {stored}, and its {named} {quoted(name)} is not a published "
                f"encoder that is known; add the keys of the encoder's config.json as {stored}"
            )
        family, entry = published[name]
        keys = dict(family.write(entry.spec))
    return {"model_type": "deberta-v2", **keys}


def split_tensors(
    tensors: Mapping[str, StoredTensor], prefixes: tuple[str, ...] = (ENCODER, LABEL_ENCODER)
) -> list[dict[str, StoredTensor]]:
    """The tensors with each prefix, without it, and after them all others, which are those of the head."""
    parts: dict[str, dict[str, StoredTensor]] = {prefix: {} for prefix in (*prefixes, "")}
    for name, tensor in tensors.items():
        prefix = next(prefix for prefix in parts if name.startswith(prefix))
        parts[prefix][name.removeprefix(prefix)] = replace(tensor, key=tensor.key or name)
    return list(parts.values())


def head_shapes(head: LabelHead, encoder_width: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the head, by its name in the file."""
    width, shapes = head.width, dict[str, tuple[int, ...]]()

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def two_layers(name: str, inputs: int) -> None:
        linear(f"{name}.0", inputs, EXPANSION * width)
        linear(f"{name}.3", EXPANSION * width, width)

    if encoder_width != width:
        linear("token_rep_layer.projection", encoder_width, width)
    if head.labels_width not in (None, width):
        linear("token_rep_layer.labels_projection", head.labels_width, width)
    for layer in range(head.rnn_layers):
        for end in ("", "_reverse"):
            for part, inputs in (("ih", width), ("hh", width // 2)):
                shapes[f"rnn.lstm.weight_{part}_l{layer}{end}"] = (2 * width, inputs)
                shapes[f"rnn.lstm.bias_{part}_l{layer}{end}"] = (2 * width,)
    if head.scores == "spans":
        for part in ("project_start", "project_end"):
            two_layers(f"span_rep_layer.span_rep_layer.{part}", width)
        two_layers("span_rep_layer.span_rep_layer.out_project", 2 * width)
        two_layers("prompt_rep_layer", width)
    else:
        linear("scorer.proj_token", width, 2 * width)
        linear("scorer.proj_label", width, 2 * width)
        linear("scorer.out_mlp.0", 3 * width, EXPANSION * width)
        linear("scorer.out_mlp.3", EXPANSION * width, 3)
    return shapes


def read_class_config(config: JsonSettings) -> tuple[JsonSettings, ClassHead]:
    """The encoder's config.json, and the head, that the config.json of a folder of gliclass describes.

    Raises:
        UnknownArchitecture: it asks for a part that is not built, or names no known encoder.
        CorruptCheckpoint: a value has the wrong type, or is outside its range.
    """
    kind = config.get("architecture_type", "uni-encoder")
    if kind != "uni-encoder":
        raise UnknownArchitecture(
            f"{config.name} says architecture_type is {quoted(kind)}; only GLiClass models of type "
            "uni-encoder, in which one encoder reads the labels with the text, are built, so use such a "
            "checkpoint"
        )
    for key in ("squeeze_layers", "use_calibrator", "multimodal"):
        config.require_one_of(key, False)
    config.require_one_of("encoder_layer_id", -1)
    for key, choices in (
        ("class_token_pooling", ("first", "average")),
        ("scorer_type", tuple(SCORERS)),
        ("pooling_strategy", tuple(POOLINGS)),
        ("projector_hidden_act", (*ACTIVATIONS, "tanh")),
    ):
        config.require_one_of(key, *choices)
    encoder = _encoder_keys(config)
    width = config.get_optional("hidden_size", int)
    width = encoder.get("hidden_size") if width is None else width  # type: ignore[assignment]
    if not isinstance(width, int):
        raise CorruptCheckpoint(f"{config.name} has no hidden_size; add the width of the head's layers")
    in_range(config, "hidden_size", width, require_size)
    activation: Activation = {**ACTIVATIONS, "tanh": "tanh"}[config.get("projector_hidden_act", "gelu")]
    head = ClassHead(
        width,
        activation,
        SCORERS[config.get("scorer_type", "simple")],
        POOLINGS[config.get("pooling_strategy", "first")],
        names_first=config.get("prompt_first", False),
        reads_marker=config.get("embed_class_token", True),
        reads_name=config.get("class_token_pooling", "first") == "average",
        text_alone=config.get("extract_text_features", False),
        unit_length=config.get("normalize_features", False),
        recurrent=config.get("use_lstm", False),
        segments=config.get("use_segment_embeddings", False),
    )
    if head.text_alone and head.pooling == "last" and not head.recurrent:
        raise UnknownArchitecture(
            f"{config.name} says pooling_strategy is 'last' and extract_text_features is true, with which "
            "gliclass reads a place behind the text that holds nothing; use a checkpoint with another pooling"
        )
    return JsonSettings(f"encoder_config in {config.name}", encoder), head


def written_class_config(
    head: ClassHead, config: Mapping[str, Any], encoder: Mapping[str, Any], ids: Mapping[str, int | None]
) -> dict[str, Any]:
    """The contents of config.json of a folder of gliclass; `read_class_config` reads them back.

    Args:
        head: the head.
        config: of the file that it was read from, whose other keys are kept.
        encoder: the keys of the encoder's config.json.
        ids: of the tokens that mark names and separate them from the text, by the keys of config.json.
    """
    activation = "tanh" if head.activation == "tanh" else name_of(ACTIVATIONS, head.activation)
    return {
        "architectures": ["GLiClassModel"],
        "problem_type": "multi_label_classification",
        **config,
        **{key: id_ for key, id_ in ids.items() if id_ is not None},
        "architecture_type": "uni-encoder",
        "class_token_pooling": "average" if head.reads_name else "first",
        "embed_class_token": head.reads_marker,
        "encoder_config": dict(encoder),
        "extract_text_features": head.text_alone,
        "hidden_size": head.width,
        "model_type": CLASS_TYPE,
        "normalize_features": head.unit_length,
        "pooling_strategy": name_of(POOLINGS, head.pooling),
        "projector_hidden_act": activation,
        "prompt_first": head.names_first,
        "scorer_type": name_of(SCORERS, head.scorer),
        "use_lstm": head.recurrent,
        "use_segment_embeddings": head.segments,
        "vocab_size": encoder.get("vocab_size"),
    }


def split_class_tensors(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """The tensors of the encoder under their own names, and those of the head without their prefix."""
    of_encoder, of_head, others = split_tensors(tensors, (CLASS_ENCODER, OF_CLASSES))
    table = f"{SEGMENTS}.weight"
    if table in of_head:
        of_encoder[table] = of_head.pop(table)
    return of_encoder, of_head | others


def with_segments(family: Family, spec: EncoderSpec, head: ClassHead | None) -> tuple[Family, EncoderSpec]:
    """The encoder and its family with the table of token types of the head, if it has one.

    Raises:
        UnknownArchitecture: the encoder has token types of its own.
    """
    if head is None or not head.segments:
        return family, spec
    if spec.embedding.segments:
        raise UnknownArchitecture(
            "config.json says use_segment_embeddings is true, and its encoder has token types already; use a "
            "checkpoint whose encoder has none, such as DeBERTa v3 or ModernBERT"
        )
    rows = (Rename(SEGMENTS, "embedding.segments"), *family.encoder_rows)
    embedding = replace(spec.embedding, segments=SEGMENT_COUNT)
    return replace(family, encoder_rows=rows), replace(spec, embedding=embedding)


def class_shapes(head: ClassHead, encoder_width: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the head, by its name in the file without `OF_CLASSES`.

    Raises:
        UnknownArchitecture: it has a part whose sizes gliclass cannot join.
    """
    width, shapes = head.width, dict[str, tuple[int, ...]]()

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    if width != encoder_width and (head.recurrent or head.scorer != "dot"):
        raise UnknownArchitecture(
            f"config.json says hidden_size is {width}, and its encoder has {encoder_width}; with use_lstm, "
            "or a scorer_type other than simple, they must be equal"
        )
    for name in ("text_projector", "classes_projector"):
        linear(f"{name}.linear_1", encoder_width, width)
        linear(f"{name}.linear_2", width, encoder_width)
    shapes["logit_scale"] = ()
    if head.recurrent:
        half = width // 2
        for end in ("", "_reverse"):
            for part, inputs in (("ih", width), ("hh", half)):
                shapes[f"lstm.lstm.weight_{part}_l0{end}"] = (4 * half, inputs)
                shapes[f"lstm.lstm.bias_{part}_l0{end}"] = (4 * half,)
    if head.scorer == "weighted_dot":
        linear("scorer.proj_text", width, 2 * width)
        linear("scorer.proj_label", width, 2 * width)
        linear("scorer.out_mlp.0", 3 * width, EXPANSION * width)
        linear("scorer.out_mlp.3", EXPANSION * width, 1)
    elif head.scorer == "network":
        linear("scorer.mlp.0", 2 * width, NETWORK)
        linear("scorer.mlp.2", NETWORK, NETWORK // 2)
        linear("scorer.mlp.4", NETWORK // 2, 1)
    return shapes


@dataclass(frozen=True)
class NamedLabels:
    """What a folder says of a head for labels that are named with the text; nothing if it has none."""

    stated: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the file that describes it."""
    label_head: LabelHead | None = None
    label_encoder: JsonSettings | None = None
    """The config.json of the encoder of labels."""
    class_head: ClassHead | None = None
    schema_head: SchemaHead | None = None

    def split(
        self, tensors: Mapping[str, StoredTensor]
    ) -> tuple[Mapping[str, StoredTensor], Mapping[str, StoredTensor], Mapping[str, StoredTensor]]:
        """The tensors of the encoder, of the encoder of labels, and of the head."""
        if self.label_head is not None:
            encoder, labels, head = split_tensors(tensors)
            return encoder, labels, head
        if self.class_head is not None:
            encoder, head = split_class_tensors(tensors)
            return encoder, {}, head
        if self.schema_head is not None:
            encoder, head = split_schema_tensors(tensors)
            return encoder, {}, head
        return tensors, {}, {}


def read_configs(
    config: JsonSettings | None, labels: JsonSettings | None, encoder: JsonSettings | None = None
) -> tuple[JsonSettings, NamedLabels]:
    """The encoder's config.json, which may be a part of another file, and what that says of a head.

    Args:
        config: config.json; None without one.
        labels: gliner_config.json; None without one.
        encoder: the encoder's config.json in a folder of gliner2; None without one.

    Raises:
        UnknownArchitecture: it asks for a part that is not built, or names no known encoder.
        CorruptCheckpoint: a value has the wrong type, or is outside its range.
    """
    if labels is not None:
        encoder, label_head, label_encoder = read_label_config(labels)
        return encoder, NamedLabels(labels.values, label_head, label_encoder)
    config = config or JsonSettings("config.json", {})
    if config.values.get("model_type") == SCHEMA_TYPE:
        encoder, schema_head = read_schema_config(config, encoder)
        return encoder, NamedLabels(config.values, schema_head=schema_head)
    if config.values.get("model_type") != CLASS_TYPE:
        return config, NamedLabels()
    encoder, class_head = read_class_config(config)
    return encoder, NamedLabels(config.values, class_head=class_head)
