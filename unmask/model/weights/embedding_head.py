"""How a folder says its sentence embedding is made: modules.json and 1_Pooling, read and written."""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from unmask.errors import CorruptCheckpoint
from unmask.model.spec import EmbeddingHead, PoolingMode

MODES: dict[str, PoolingMode] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
}
"""Names in 1_Pooling/config.json -> ours, in the order in which the older form puts several side by side."""

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
"""The older form of 1_Pooling/config.json: a true or false for each."""

EMBEDDING_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)


def read_json(files: Mapping[str, bytes], name: str) -> Any:
    """The value in a JSON file.

    Raises:
        CorruptCheckpoint: it is not JSON, or no UTF-8 text.
    """
    try:
        return json.loads(files[name])
    except ValueError as error:
        raise CorruptCheckpoint(f"{name} is not JSON: {error}") from None


class _NotKnown(Exception):
    """The folder does not define an embedding that is built here; the message says why."""


def read_head(files: Mapping[str, bytes], open_file: Callable[[str], bytes | None]) -> EmbeddingHead | str:
    """The embedding head that the folder defines, or the sentence that says why there is none.

    Args:
        files: those of `EMBEDDING_FILES` that the folder has.
        open_file: the contents of another file of the folder, None where it is not there.

    Raises:
        CorruptCheckpoint: a file is no JSON, or modules.json names one that is not there.
    """
    try:
        if "modules.json" not in files:
            raise _NotKnown("the checkpoint does not say how to make one vector of a text")
        _check_texts_unchanged(files)
        return _head(read_json(files, "modules.json"), open_file)
    except _NotKnown as reason:
        return f"{reason}; name a pooling"


def _head(modules: Any, open_file: Callable[[str], bytes | None]) -> EmbeddingHead:
    if not isinstance(modules, list) or not all(isinstance(m, dict) and "type" in m for m in modules):
        raise CorruptCheckpoint("modules.json is no list of modules")
    modes: tuple[PoolingMode, ...] = ()
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    for kind, module in zip(kinds, modules, strict=True):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise _NotKnown(f"modules.json asks for a {kind} module, which is not built")
        if kind == "Pooling":
            name = str(PurePosixPath(module.get("path", ""), "config.json"))
            content = open_file(name)
            if content is None:
                raise CorruptCheckpoint(f"modules.json names {name}, which is not in the folder")
            modes = _modes(read_json({name: content}, name))
    if not modes:
        raise _NotKnown("modules.json names no Pooling module")
    return EmbeddingHead(modes, unit_length="Normalize" in kinds)


def _check_texts_unchanged(files: Mapping[str, bytes]) -> None:
    """Refuse what would change a text before it is tokenized."""
    if read_config(files, "sentence_bert_config.json").get("do_lower_case"):
        raise _NotKnown("sentence_bert_config.json asks to lower-case texts first, which is not built")
    prompts = read_config(files, "config_sentence_transformers.json")
    default = prompts.get("default_prompt_name")
    if default is not None and prompts.get("prompts", {}).get(default):
        raise _NotKnown(f"the checkpoint puts its prompt {default!r} before every text, which is not built")


def read_config(files: Mapping[str, bytes], name: str) -> Mapping[str, Any]:
    """A JSON object in a file; empty where the file is not there."""
    config = read_json(files, name) if name in files else {}
    if not isinstance(config, dict):
        raise CorruptCheckpoint(f"{name} is no JSON object")
    return config


def _modes(config: Mapping[str, Any]) -> tuple[PoolingMode, ...]:
    named = config.get("pooling_mode")
    if named is None:
        names = [name for name, flag in FLAGS.items() if config.get(flag) is True]
        others = [key for key, on in config.items() if on is True and key.startswith("pooling_mode_")]
        names += [key for key in others if key not in FLAGS.values()]
    else:
        names = [named] if isinstance(named, str) else list(named)
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise _NotKnown(f"1_Pooling asks for {unknown[0]} pooling, which is not built")
    return tuple(MODES[name] for name in names)


def write_head(head: EmbeddingHead, width: int, max_tokens: int | None) -> dict[str, bytes]:
    """The files that say to `sentence-transformers`, old and new, how the embedding is made."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if head.unit_length:
        modules.append(("2_Normalize", "Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    names = [name for name, ours in MODES.items() if ours in head.pooling]
    pooling: dict[str, object] = {"word_embedding_dimension": width}
    if tuple(MODES[name] for name in names) == head.pooling:
        pooling |= {flag: name in names for name, flag in FLAGS.items()}
    else:
        back = {ours: name for name, ours in MODES.items()}
        pooling = {"embedding_dimension": width, "pooling_mode": [back[m] for m in head.pooling]}
    files: dict[str, object] = {"modules.json": listed, "1_Pooling/config.json": pooling}
    if max_tokens is not None:
        files["sentence_bert_config.json"] = {"max_seq_length": max_tokens, "do_lower_case": False}
    return {name: to_json(value) for name, value in files.items()}


def to_json(value: object) -> bytes:
    """The bytes of a JSON file: indented, in the order given, ending in a newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
