"""Create a new checkpoint to train from config.json keys and a tokenizer.

Saved by `unmask.weights.write.save.save`, it is an ordinary checkpoint folder of its family.

Its config.json and its tokenizer's files also have the settings that other programs read.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.base.arguments import at_least
from unmask.base.json_settings import JsonSettings
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.families import Family, family_of
from unmask.spec import EncoderSpec
from unmask.spec.config import WITHOUT_EFFECT
from unmask.spec.encoder import Initialization
from unmask.text import Tokenizer
from unmask.weights.heads.classes import spec_of_class
from unmask.weights.heads.embedding_head import read_head
from unmask.weights.read.checkpoint import NO_LIMIT, Checkpoint, max_tokens, trained_tokens
from unmask.weights.read.find import Source
from unmask.weights.write.save import check_written

ROLES = {"bos_token_id": "cls", "cls_token_id": "cls", "eos_token_id": "sep", "sep_token_id": "sep"}
"""Keys of config.json that name a token, and its role. If they are missing, `transformers` uses the ids of
the family's published vocabulary."""

CONFIG = "tokenizer_config.json"


def token_ids(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, int]:
    """The ids missing from a config, by key."""
    ids = {}
    for key, role in ROLES.items():
        id = (
            tokenizer.token_to_id(tokenizer.special_tokens[role])
            if role in tokenizer.special_tokens
            else None
        )
        if id is not None and config.get(key) is None:
            ids[key] = id
    return ids


def files_with_length(files: Mapping[str, bytes], spec: EncoderSpec, longest: int | None) -> dict[str, bytes]:
    """The tokenizer's files with the maximum length, and without token types that the model does not have.

    Args:
        files: the files of the checkpoint folder.
        spec: the spec of the encoder.
        longest: the maximum number of tokens per text; None if there is no limit.
    """
    if CONFIG not in files:
        return dict(files)
    config = JsonSettings.parse(files[CONFIG], CONFIG).values
    changed: dict[str, Any] = {}
    limit = config.get("model_max_length")
    if longest is not None and (not isinstance(limit, int | float) or limit >= NO_LIMIT):
        changed["model_max_length"] = longest
    names = config.get("model_input_names")
    if spec.embedding.segments < 2 and isinstance(names, list) and "token_type_ids" in names:
        changed["model_input_names"] = [name for name in names if name != "token_type_ids"]
    if not changed:
        return dict(files)
    content = json.dumps({**config, **changed}, indent=2, sort_keys=True, ensure_ascii=False)
    return {**files, CONFIG: f"{content}\n".encode()}


def without_length(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The tokenizer's files without a limit on the length of a text."""
    if CONFIG not in files:
        return dict(files)
    config = dict(JsonSettings.parse(files[CONFIG], CONFIG).values)
    config.pop("model_max_length", None)
    return {**files, CONFIG: json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False).encode()}


NOT_TRAINED: dict[str, tuple[object, ...]] = {
    "embd_pdrop": (0.0, None),
    "mlp_dropout": (0.0, None),
    "sinusoidal_pos_embds": (False,),
}
"""Keys that matter only in training, and their only supported values."""


def new_checkpoint(
    config: Mapping[str, Any], tokenizer_files: Mapping[str, bytes], *, name: str = "fresh"
) -> Checkpoint:
    """The checkpoint of an untrained encoder, without weights; see `new_encoder`.

    The family is that of ``model_type``, and the heads are those of the class in ``architectures``, such as
    ``["BertForPreTraining"]``. Ids of special tokens missing from the config come from the tokenizer, and a
    maximum length missing from the tokenizer's files comes from the encoder.

    Args:
        config: the contents of its config.json.
        tokenizer_files: file name -> content, as in a checkpoint folder.
        name: its name in reports.

    Raises:
        UnknownArchitecture: there is no such family or class, or a key is unknown.
        CorruptCheckpoint: a value is outside its range.
        InvalidRequest: config and tokenizer do not belong together, or the encoder cannot be built.
    """
    settings, family, spec = _read(config)
    tokenizer = Tokenizer.from_files(tokenizer_files, settings.get_optional("model_type", str))
    spec = _with_padding(spec, tokenizer)
    _check_vocabulary(spec, tokenizer)
    _check_mask(spec, tokenizer)
    check_written(family, spec, settings.values)
    longest = spec.max_tokens or spec.trained_tokens
    files = files_with_length(tokenizer.files, spec, longest)
    tokenizer = replace(tokenizer, files=files)
    return Checkpoint(
        source=Source(Path(name), name),
        family=family,
        spec=spec,
        config={**settings.values, **token_ids(settings.values, tokenizer)},
        unread_config=(),
        tensors={},
        stored_tokenizer=tokenizer,
        head=read_head({}, lambda _: None),
        max_tokens=max_tokens(spec, {}, tokenizer),
        trained_tokens=trained_tokens(spec, tokenizer),
        sentence_files={},
    )


def check_config(config: Mapping[str, Any]) -> EncoderSpec:
    """The encoder that a config.json describes, checked without a tokenizer.

    Raises:
        UnknownArchitecture, CorruptCheckpoint: see `new_checkpoint`.
        InvalidRequest: the encoder cannot be built or saved.
    """
    settings, family, spec = _read(config)
    check_written(family, spec, settings.values)
    return spec


def _read(config: Mapping[str, Any]) -> tuple[JsonSettings, Family, EncoderSpec]:
    settings = JsonSettings("the config", dict(config))
    family = family_of(settings.values)
    for key, built in NOT_TRAINED.items():
        if key in settings.values:
            settings.require_one_of(key, *built)
    spec = spec_of_class(family, settings)
    unread = settings.unread() - set(WITHOUT_EFFECT)
    if unread:
        raise UnknownArchitecture(
            f"the config says {', '.join(sorted(unread))}, which nothing here reads; "
            "remove it, or spell it as the family's published config.json files do"
        )
    return settings, family, spec


def new_encoder(
    checkpoint: Checkpoint,
    initialization: Initialization = "normal",
    *,
    seed: int | None = None,
    kernel: str | None = None,
) -> Encoder:
    """An encoder with newly initialized weights in float32, on the CPU, in training mode.

    Args:
        checkpoint: from `new_checkpoint`, or any other: only its spec is used.
        initialization: how weights are initialized, see `Initialization`.
        seed: determines all weights without changing torch's global generator; None uses that generator.
        kernel: the attention kernel to use; None uses the first that supports the model.

    Raises:
        InvalidRequest: there is no such initialization.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        encoder = Encoder(checkpoint.spec, kernel=kernel, output=checkpoint.head)
        if initialization != "normal":
            encoder.initialize(initialization)
    return encoder


def with_tokenizer(
    config: Mapping[str, Any], tokenizer: Tokenizer, *, multiple: int = 64, rows: int = 0
) -> dict[str, Any]:
    """A config with the vocabulary size and padding id of a tokenizer, otherwise unchanged.

    The vocabulary size is ``rows`` if the tokenizer needs no more and there are any. Otherwise it is rounded
    up to a multiple, which makes matrix products on GPUs faster.
    """
    at_least("multiple", multiple, 1)
    family = family_of(config)
    spec = family.read(JsonSettings("the config", config), "published")
    pieces = tokenizer.vocabulary_size
    size = rows if rows >= pieces else -(-pieces // multiple) * multiple
    dropout, mask_id = spec.embedding.token_dropout, tokenizer.mask_id
    if dropout is not None:
        dropout = None if mask_id is None else replace(dropout, mask_id=mask_id)
    embedding = replace(
        spec.embedding, vocabulary=size, padding_id=_padding_id(tokenizer), token_dropout=dropout
    )
    before, after = family.write(spec), family.write(replace(spec, embedding=embedding))
    return {**config, **{key: value for key, value in after.items() if value != before[key]}}


def _padding_id(tokenizer: Tokenizer) -> int | None:
    pad = tokenizer.special_tokens.get("pad")
    return None if pad is None else tokenizer.token_to_id(pad)


def _with_padding(spec: EncoderSpec, tokenizer: Tokenizer) -> EncoderSpec:
    configured, padding_id = spec.embedding.padding_id, _padding_id(tokenizer)
    if configured is None:
        return replace(spec, embedding=replace(spec.embedding, padding_id=padding_id))
    if padding_id is not None and padding_id != configured:
        raise InvalidRequest(
            f"the config's padding id is {configured} and the tokenizer pads with {padding_id}; "
            f"set pad_token_id to {padding_id}"
        )
    return spec


def _check_mask(spec: EncoderSpec, tokenizer: Tokenizer) -> None:
    dropout, mask_id = spec.embedding.token_dropout, tokenizer.mask_id
    if dropout is not None and dropout.mask_id != mask_id:
        known = "has no mask token" if mask_id is None else f"masks with {mask_id}"
        way = "token_dropout to false" if mask_id is None else f"mask_token_id to {mask_id}"
        raise InvalidRequest(
            f"the config drops the token {dropout.mask_id} and the tokenizer {known}; set {way}"
        )


def _check_vocabulary(spec: EncoderSpec, tokenizer: Tokenizer) -> None:
    has, needed = spec.embedding.vocabulary, tokenizer.vocabulary_size
    if has < needed:
        raise InvalidRequest(
            f"the config's vocabulary is {has} and the tokenizer has {needed} pieces; "
            f"set vocab_size to at least {needed}"
        )
    padding = spec.embedding.padding_id
    if padding is not None and not 0 <= padding < has:
        raise InvalidRequest(
            f"the config's padding id is {padding} and its vocabulary {has}; leave pad_token_id out"
        )
