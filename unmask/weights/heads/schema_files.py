"""Read and write folders of GLiNER2: an encoder, and a head for schemas. Free of torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.spec import SchemaHead
from unmask.spec.check import require_size
from unmask.spec.config_keys import in_range
from unmask.spec.heads import Counting, WordPooling
from unmask.weights.tensors import StoredTensor

SCHEMA_TYPE = "extractor"
"""The ``model_type`` of folders of gliner2."""

SCHEMA_ENCODER = "encoder_config/config.json"
"""The file with the encoder's keys."""

ENCODER = "encoder."
"""How the names of the encoder's tensors begin."""

COUNTING: Mapping[str, Counting] = {
    "count_lstm": "projected",
    "count_lstm_v2": "attended",
    "count_lstm_moe": "experts",
}
"""Values of ``counting_layer``."""

POOLINGS: Mapping[str, WordPooling] = {"first": "first", "mean": "mean", "max": "max"}
"""Values of ``token_pooling``."""

MOST_INSTANCES = 20
"""Numbers of instances that have a vector; one more is never predicted."""

NARROW, ATTENTION_HEADS, EXPERTS = 128, 4, 4
"""Sizes of the layers over fields, for which gliner2 reads no keys."""


def read_schema_config(config: JsonSettings, encoder: JsonSettings | None) -> tuple[JsonSettings, SchemaHead]:
    """The encoder's config.json, and the head that the config.json of a folder of gliner2 describes.

    Raises:
        UnknownArchitecture: it asks for a part that is not built.
        CorruptCheckpoint: a value has the wrong type or is out of range, or the encoder's file is missing.
    """
    kind = config.get("architecture", "span")
    if kind != "span":
        raise UnknownArchitecture(
            f"{config.name} says architecture is {quoted(kind)}; of GLiNER2 only models of spans, such as "
            "fastino/gliner2-base-v1, are built, so use such a checkpoint"
        )
    config.require_one_of("counting_layer", *COUNTING)
    config.require_one_of("token_pooling", *POOLINGS)
    width = config.get("max_width", 8)
    in_range(config, "max_width", width, require_size)
    if encoder is None:
        raise CorruptCheckpoint(
            f"{config.name} is that of a GLiNER2 model, and the folder has no {SCHEMA_ENCODER}, which holds "
            "the keys of the encoder; copy it from the checkpoint"
        )
    head = SchemaHead(
        width,
        COUNTING[config.get("counting_layer", "count_lstm")],
        POOLINGS[config.get("token_pooling", "first")],
    )
    return encoder, head


def split_schema_tensors(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """The tensors of the encoder under their own names, and those of the head."""
    encoder = {
        name.removeprefix(ENCODER): replace(tensor, key=tensor.key or name)
        for name, tensor in tensors.items()
        if name.startswith(ENCODER)
    }
    return encoder, {name: tensor for name, tensor in tensors.items() if not name.startswith(ENCODER)}


def schema_shapes(head: SchemaHead, width: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the head on an encoder of that width."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    for part, inputs in (("project_start", width), ("project_end", width), ("out_project", 2 * width)):
        linear(f"span_rep.span_rep_layer.{part}.0", inputs, 4 * width)
        linear(f"span_rep.span_rep_layer.{part}.3", 4 * width, width)
    for part, outputs in (("classifier", 1), ("count_pred", MOST_INSTANCES)):
        linear(f"{part}.0", width, 2 * width)
        linear(f"{part}.2", 2 * width, outputs)
    name = "count_embed."
    shapes[f"{name}pos_embedding.weight"] = (MOST_INSTANCES, width)
    for part in ("ih", "hh"):
        shapes[f"{name}gru.weight_{part}_l0"], shapes[f"{name}gru.bias_{part}_l0"] = (
            (3 * width, width),
            (3 * width,),
        )
    match head.counting:
        case "projected":
            linear(f"{name}projector.0", 2 * width, 4 * width)
            linear(f"{name}projector.2", 4 * width, width)
        case "attended":
            linear(f"{name}transformer.in_projector", width, NARROW)
            for layer in (f"{name}transformer.transformer.layers.{number}." for number in (0, 1)):
                shapes[f"{layer}self_attn.in_proj_weight"] = (3 * NARROW, NARROW)
                shapes[f"{layer}self_attn.in_proj_bias"] = (3 * NARROW,)
                linear(f"{layer}self_attn.out_proj", NARROW, NARROW)
                linear(f"{layer}linear1", NARROW, 2 * NARROW)
                linear(f"{layer}linear2", 2 * NARROW, NARROW)
                for norm in ("norm1", "norm2"):
                    shapes[f"{layer}{norm}.weight"] = shapes[f"{layer}{norm}.bias"] = (NARROW,)
            linear(f"{name}transformer.out_projector.0", width + NARROW, width)
            linear(f"{name}transformer.out_projector.2", width, width)
            linear(f"{name}transformer.out_projector.4", width, width)
        case "experts":
            shapes[f"{name}w1"], shapes[f"{name}b1"] = (EXPERTS, width, 2 * width), (EXPERTS, 2 * width)
            shapes[f"{name}w2"], shapes[f"{name}b2"] = (EXPERTS, 2 * width, width), (EXPERTS, width)
            linear(f"{name}router.0", width, width)
            linear(f"{name}router.2", width, EXPERTS)
        case _:
            assert_never(head.counting)
    return shapes


def written_schema(config: Mapping[str, Any], head: SchemaHead) -> dict[str, Any]:
    """The config.json of a folder of gliner2, whose other keys are kept."""
    counting = next(key for key, value in COUNTING.items() if value == head.counting)
    stated = {"model_type": SCHEMA_TYPE, "max_width": head.max_width, "counting_layer": counting}
    return {**config, **stated, "token_pooling": head.pooling}
