"""Settings of a new checkpoint for other programs, in config.json and the tokenizer's files."""

import json
from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.spec import EncoderSpec
from unmask.text import Tokenizer
from unmask.weights.read.checkpoint import NO_LIMIT

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


def tokenizer_files(files: Mapping[str, bytes], spec: EncoderSpec, longest: int | None) -> dict[str, bytes]:
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
