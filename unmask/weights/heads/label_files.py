"""Read folders of GLiNER: an encoder, and a head for labels that are named with the text. Free of torch."""

from collections.abc import Mapping
from dataclasses import replace

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families import FAMILIES
from unmask.spec import LabelHead
from unmask.spec.check import require_size
from unmask.spec.config_keys import in_range
from unmask.weights.tensors import StoredTensor

LABEL_CONFIG = "gliner_config.json"

ENCODER = "token_rep_layer.bert_layer.model."
"""The prefix of the encoder's tensors."""

SCORES = {"markerV0": "spans", "token_level": "words", "token-level": "words"}
"""Values of ``span_mode``."""

EXPANSION = 4
"""Two dense layers widen a vector to so many times the width of their result between them."""

NOT_BUILT = {
    "labels_encoder": "labels are read by an encoder of their own",
    "labels_decoder": "labels are generated",
    "relations_layer": "relations are found",
    "post_fusion_schema": "vectors of words and labels attend to each other",
    "fuse_layers": "states of several layers are mixed",
}
"""Keys that ask for parts which are not built, and what they do."""


def read_label_config(config: JsonSettings) -> tuple[JsonSettings, LabelHead]:
    """The encoder's config.json and the head that gliner_config.json describes.

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
    return JsonSettings(f"encoder_config in {LABEL_CONFIG}", _encoder_keys(config)), head


def _encoder_keys(config: JsonSettings) -> dict[str, object]:
    """The keys of the encoder's config.json: those in the file, or those of the published model it names."""
    keys = config.get_optional("encoder_config", dict)
    if keys is None:
        name = config.get("model_name", "")
        published = {entry.name: (family, entry) for family in FAMILIES for entry in family.published}
        if name not in published:
            raise UnknownArchitecture(
                f"{LABEL_CONFIG} has no encoder_config, and its model_name {quoted(name)} is not a published "
                "encoder that is known; add the keys of the encoder's config.json as encoder_config"
            )
        family, entry = published[name]
        keys = dict(family.write(entry.spec))
    size = config.get_optional("vocab_size", int)
    grown = {} if size is None or size < 1 else {"vocab_size": size}
    return {"model_type": "deberta-v2", **keys, **grown}


def split_tensors(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """The tensors of the encoder, under its own names, and those of the head."""
    encoder = {
        name.removeprefix(ENCODER): replace(tensor, key=tensor.key or name)
        for name, tensor in tensors.items()
        if name.startswith(ENCODER)
    }
    return encoder, {name: tensor for name, tensor in tensors.items() if not name.startswith(ENCODER)}


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
