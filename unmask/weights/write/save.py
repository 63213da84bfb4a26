"""Write a Hugging Face checkpoint folder that `transformers` and `sentence-transformers` load.

Before a training begins, `check_written` says whether its encoder can be saved, and `written_as` in whose
layout.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unmask.base.arguments import at_least
from unmask.base.checksums import write_checksums
from unmask.base.files import read_bytes, whole_folder
from unmask.base.json_settings import JsonSettings
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import StaticWeights
from unmask.encoder.layers.lora import merged_state
from unmask.errors import CorruptCheckpoint, InvalidRequest, OutputError, TensorMismatch, UnmaskError
from unmask.families import Family, family_of
from unmask.families.family import Shapes
from unmask.families.native import NATIVE
from unmask.spec import ClassHead, EncoderSpec, LabelHead, SchemaHead, SparseVector
from unmask.weights.build import on_meta
from unmask.weights.heads.embedding_head import token_layer_files, write_output
from unmask.weights.heads.label_files import (
    CLASS_ENCODER,
    ENCODER,
    LABEL_CONFIG,
    LABEL_ENCODER,
    LABEL_TOKENIZER,
    OF_CLASSES,
    SEGMENTS,
    written_class_config,
    written_label_config,
)
from unmask.weights.heads.pruning_files import written_pruning
from unmask.weights.heads.schema_files import ENCODER as SCHEMA_TENSORS
from unmask.weights.heads.schema_files import SCHEMA_ENCODER, written_schema
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.heads.sparse_files import QUERY_MODULE, query_tokenizer
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import read_arrays
from unmask.weights.tensor_report import moves
from unmask.weights.tensors import INDEX, WEIGHTS, StoredTensor, in_their_order

OUTPUT = "output."
"""The prefix of the tensors of the layers that the output adds; they have files of their own."""


def output_modules(
    encoder: Encoder, files: Mapping[str, bytes], vocabulary: int | None
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each of the output's layers that has any, by the folder that ``files`` give it.

    Layers are modules of modules.json in the order of the encoder's. A table of word weights is cut to the
    tokenizer's vocabulary.
    """
    by_folder: dict[str, dict[str, Tensor]] = {}
    for layer in encoder.output:
        if isinstance(layer, StaticWeights):
            return {QUERY_MODULE: {"weight": layer.weight.detach()[:vocabulary].contiguous()}}
    folders = [name.partition("/")[0] for name in files if name.endswith("/config.json")]
    layered = [name for name in folders if name.partition("_")[2] in ("Dense", "LayerNorm")]
    layers = [layer for layer in encoder.output if layer.state_dict()]
    if len(layers) != len(layered):
        raise InvalidRequest(
            f"the checkpoint's output has {len(layered)} layers with weights and the encoder has "
            f"{len(layers)}; build the encoder for that output"
        )
    for folder, layer in zip(layered, layers, strict=True):
        by_folder[folder] = {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}
    return by_folder


def their_tensors(encoder: Encoder, family: Family) -> dict[str, Tensor]:
    """The encoder's tensors under the family's names, with concatenated ones split."""
    state = {name: tensor for name, tensor in merged_state(encoder).items() if not name.startswith(OUTPUT)}
    tensors: dict[str, Tensor] = {}
    for move in moves(family.tensor_map_of(encoder.spec), state, partial(family.layer_name, encoder.spec)):
        whole = in_their_order(state[move.ours], move.reorder, encoder.spec)
        parts = torch.split(whole, list(move.rows_of(len(whole), encoder.spec)))
        # Their classes store the encoder under the model's name, next to the heads.
        prefix = (
            family.prefix if encoder.spec.heads and not move.ours.startswith(family.outside_prefix) else ""
        )
        tensors |= {prefix + name: part.contiguous() for name, part in zip(move.theirs, parts, strict=True)}
    return tensors


def save(
    encoder: Encoder,
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    shard_bytes: int | None = None,
    labels: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the encoder with its tokenizer and embedding head; the folder appears complete or not at all.

    The same encoder always gives the same bytes. Tokenizer files are written as they were read.
    Keys of config.json that do not describe the encoder are kept from the checkpoint. With
    ``shard_bytes`` the weights are split into files of at most that many bytes (a larger tensor
    gets its own file) and an index. `CHECKSUMS` holds the SHA-256 of every file.

    With a head for labels that are named with the text, the folder is one that gliner loads; ``labels`` are
    the tensors of this head, None for those of the checkpoint's files.

    Raises:
        OutputError: the folder exists and is not empty, or the disk is full or read-only.
    """
    family = checkpoint.family
    config: Mapping[str, Any] = {**checkpoint.config, **family.write(encoder.spec)}
    dtype = str(encoder.embedding.words.weight.dtype).removeprefix("torch.")
    config = {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype")}
    files = {
        "config.json": to_json(dict(sorted({**config, "dtype": dtype}.items()))),
        **(checkpoint.stored_tokenizer.files if checkpoint.stored_tokenizer else {}),
        **checkpoint.sentence_files,
        **{
            path.name: read_bytes(path, CorruptCheckpoint)
            for path in token_layer_files(checkpoint.source.folder)
        },
    }
    files |= write_output(checkpoint.head, encoder.spec, checkpoint.max_tokens, checkpoint.sentence_files)
    if isinstance(checkpoint.head, SparseVector) and checkpoint.head.static_queries:
        files |= query_tokenizer(checkpoint.tokenizer)
    words = checkpoint.stored_tokenizer.vocabulary_size if checkpoint.stored_tokenizer else None
    tensors, modules = their_tensors(encoder, family), output_modules(encoder, files, words)
    if checkpoint.label_head is not None:
        files, tensors = _with_labels(checkpoint, checkpoint.label_head, files, tensors, labels)
    if checkpoint.class_head is not None:
        files, tensors = _with_classes(checkpoint, checkpoint.class_head, files, tensors)
    if checkpoint.schema_head is not None:
        files, tensors = _with_schema(checkpoint, checkpoint.schema_head, files, tensors)
    if checkpoint.pruning_config:
        config = json.loads(files["config.json"])
        config, tensors = written_pruning(checkpoint.pruning_config, config, tensors)
        files["config.json"] = to_json(dict(sorted(config.items())))
    with whole_folder(Path(folder)) as partial:
        for name, content in sorted(files.items()):
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            _write_weights(tensors, partial, shard_bytes)
            for place, module_tensors in modules.items():
                save_file(module_tensors, partial / place / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"cannot write {Path(folder) / WEIGHTS}: {error}") from None
        write_checksums(partial)


def _with_labels(
    checkpoint: Checkpoint,
    head: LabelHead,
    files: Mapping[str, bytes],
    tensors: Mapping[str, Tensor],
    labels: Mapping[str, Tensor] | None,
) -> tuple[dict[str, bytes], dict[str, Tensor]]:
    """The files and tensors of a folder of gliner, whose config.json is a part of another file."""
    config = json.loads(files["config.json"])
    alone, second = head.labels_width is None, checkpoint.label_encoder
    marker = checkpoint.tokenizer.token_to_id(head.entity) if alone else None
    written = written_label_config(head, checkpoint.label_config, config, marker)
    others = {name: content for name, content in files.items() if name != "config.json"}
    others[LABEL_CONFIG] = to_json(dict(sorted(written.items())))
    if labels is None:
        labels = _stored(checkpoint.label_tensors)
    named = {ENCODER + name: tensor for name, tensor in tensors.items()} | dict(labels)
    if second is not None:
        named |= {LABEL_ENCODER + name: tensor for name, tensor in _stored(second.tensors).items()}
        stored = second.stored_tokenizer
        others |= {
            f"{LABEL_TOKENIZER}/{name}": file for name, file in (stored.files if stored else {}).items()
        }
    return others, named


def _with_classes(
    checkpoint: Checkpoint, head: ClassHead, files: Mapping[str, bytes], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, bytes], dict[str, Tensor]]:
    """The files and tensors of a folder of gliclass, whose config.json has that of the encoder as a part."""
    config = json.loads(files["config.json"])
    if head.segments:  # a table of the head, and none of the encoder's own
        config["type_vocab_size"] = 0
    ids = {"class_token_index": head.marker, "text_token_index": head.separator}
    written = written_class_config(
        head,
        checkpoint.label_config,
        config,
        {key: checkpoint.tokenizer.token_to_id(token) for key, token in ids.items()},
    )
    named = {OF_CLASSES + name: tensor for name, tensor in _stored(checkpoint.label_tensors).items()}
    for name, tensor in tensors.items():
        named[(OF_CLASSES if name.startswith(SEGMENTS) else CLASS_ENCODER) + name] = tensor
    return {**files, "config.json": to_json(dict(sorted(written.items())))}, named


def _with_schema(
    checkpoint: Checkpoint, head: SchemaHead, files: Mapping[str, bytes], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, bytes], dict[str, Tensor]]:
    """The files and tensors of a folder of gliner2, whose encoder's config.json is a file of its own."""
    written = to_json(dict(sorted(written_schema(checkpoint.label_config, head).items())))
    others = {**files, "config.json": written, SCHEMA_ENCODER: files["config.json"]}
    named = {SCHEMA_TENSORS + name: tensor for name, tensor in tensors.items()}
    return others, named | _stored(checkpoint.label_tensors)


def _stored(tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in read_arrays(tensors).items()}


def _write_weights(tensors: Mapping[str, Tensor], folder: Path, shard_bytes: int | None) -> None:
    shards = _split(tensors, shard_bytes)
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_bytes(to_json(index))


def _split(tensors: Mapping[str, Tensor], shard_bytes: int | None) -> list[dict[str, Tensor]]:
    at_least("shard_bytes", shard_bytes, 1)
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in sorted(tensors.items()):
        if shard_bytes is not None and shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    return shards


NAMED = 3
"""Differences between specs that an error names at most."""


def check_written(family: Family, spec: EncoderSpec, config: Mapping[str, Any]) -> None:
    """Refuse an encoder that a family's files cannot represent exactly.

    Args:
        family: the family in whose layout it is to be saved.
        spec: the spec of the encoder.
        config: keys of config.json that are saved in addition to those of `Family.write`.

    Raises:
        InvalidRequest: the family has no name for one of its tensors or settings, or it cannot be built.
        CheckpointError: the files that would be written cannot be read.
    """
    try:
        state = on_meta(spec).state_dict()
    except (RuntimeError, ValueError) as error:
        raise InvalidRequest(f"an encoder of these sizes cannot be built: {error}") from None
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        tensor_moves = moves(family.tensor_map_of(spec), state, partial(family.layer_name, spec))
    except TensorMismatch as error:
        raise InvalidRequest(
            f"an encoder of the family {family.name} cannot be saved with these heads: {error}"
        ) from None
    for move in tensor_moves:
        first, *rest = state[move.ours].shape or (1,)
        shapes |= dict.fromkeys(move.theirs, (first // len(move.theirs), *rest))
    back = _read_back(family, {**config, **family.write(spec)}, shapes)
    if back != spec:
        written, reread = dict(family.write(spec)), dict(family.write(back))
        keys = [key for key in sorted(written | reread) if written.get(key) != reread.get(key)]
        raise InvalidRequest(
            f"the family {family.name} cannot save this encoder so that it loads as the same one: "
            f"{'; '.join(differences(spec, back)[:NAMED])}; change "
            f"{' and '.join(keys) if keys else 'the keys of the config that decide this'}"
        )


def differences(mine: object, other: object, name: str = "") -> list[str]:
    """Where two specs differ, as ``layers[0].mixer.heads is 4 and would be read as 2``."""
    if type(mine) is type(other):
        if is_dataclass(mine):
            parts = [(f"{name}.{field.name}" if name else field.name, field.name) for field in fields(mine)]
            values = [
                (getattr(mine, attribute), getattr(other, attribute), path) for path, attribute in parts
            ]
            return [text for value in values for text in differences(*value)]
        if isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
            values = [(*pair, f"{name}[{place}]") for place, pair in enumerate(zip(mine, other, strict=True))]
            return [text for value in values for text in differences(*value)]
    return [] if mine == other else [f"{name} is {mine!r} and would be read as {other!r}"]


def _read_back(family: Family, config: Mapping[str, Any], shapes: Shapes) -> EncoderSpec:
    settings = JsonSettings("the config as it is written", config)
    if family_of(config) is not family:
        raise CorruptCheckpoint(f"{settings.name} is of another family than {family.name}")
    return family.detect_heads(family.read(settings, "published"), shapes, settings)


def written_as(checkpoint: Checkpoint, spec: EncoderSpec) -> Checkpoint:
    """The checkpoint in whose layout to save an encoder derived from that of ``checkpoint``.

    This is ``checkpoint`` if its family can write the encoder, else one in unmask's own format, which
    `transformers` cannot read.
    """
    try:
        check_written(checkpoint.family, spec, checkpoint.config)
    except UnmaskError:
        return replace(checkpoint, family=NATIVE, config={}, spec=spec)
    return checkpoint
