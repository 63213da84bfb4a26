"""Read folders of GLiNER: an encoder, and a head for labels that are named with the text. Free of torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families import FAMILIES
from unmask.spec import LabelHead
from unmask.spec.check import require_size
from unmask.spec.config_keys import in_range
from unmask.weights.tensors import StoredTensor

LABEL_CONFIG = "gliner_config.json"

LABEL_TOKENIZER = "labels_encoder"
"""The folder inside the checkpoint's with the tokenizer of the encoder of labels. gliner writes none, and
takes the tokenizer of the model that the key of this name names."""

ENCODER, LABEL_ENCODER = "token_rep_layer.bert_layer.model.", "token_rep_layer.labels_encoder.model."
"""The prefixes of the tensors of the encoder, and of that of the labels."""

SCORES = {"markerV0": "spans", "token_level": "words", "token-level": "words"}
"""Values of ``span_mode``."""

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
    return {**_keys(config, "encoder_config", "model_name"), **grown}


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
                f"{LABEL_CONFIG} has no {stored}, and its {named} {quoted(name)} is not a published "
                f"encoder that is known; add the keys of the encoder's config.json as {stored}"
            )
        family, entry = published[name]
        keys = dict(family.write(entry.spec))
    return {"model_type": "deberta-v2", **keys}


def split_tensors(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor], dict[str, StoredTensor]]:
    """The tensors of the encoder and of that of the labels, under their own names, and those of the head."""
    parts: dict[str, dict[str, StoredTensor]] = {ENCODER: {}, LABEL_ENCODER: {}, "": {}}
    for name, tensor in tensors.items():
        prefix = next(prefix for prefix in parts if name.startswith(prefix))
        parts[prefix][name.removeprefix(prefix)] = replace(tensor, key=tensor.key or name)
    return parts[ENCODER], parts[LABEL_ENCODER], parts[""]


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
