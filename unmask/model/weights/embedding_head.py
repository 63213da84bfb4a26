"""How a folder says its sentence embedding is made: modules.json and 1_Pooling, read and written."""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from unmask.errors import CorruptCheckpoint, quoted
from unmask.model.spec import CheckpointOutput, PooledVector, PoolingMode, UnknownOutput
from unmask.settings import JsonSettings, parse_json

MODES: dict[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
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


class _NotKnown(Exception):
    """The folder does not define an embedding that is built here; the message says why."""


def read_head(files: Mapping[str, bytes], open_file: Callable[[str], bytes | None]) -> CheckpointOutput:
    """What the folder says that it makes of a text, or why that is not known.

    Args:
        files: those of `EMBEDDING_FILES` that the folder has.
        open_file: the contents of another file of the folder, None where it is not there.

    Raises:
        CorruptCheckpoint: a file is no JSON, or modules.json names one that is not there.
    """
    if "modules.json" not in files:
        return UnknownOutput("the checkpoint does not say how to make one vector of a text")
    modules = _modules(parse_json(files["modules.json"], "modules.json"))
    normalize = any(kind == "Normalize" for kind, _ in modules)
    try:
        return PooledVector(_pooling(modules, open_file), normalize, prompts=_prompts(files))
    except _NotKnown as reason:
        return UnknownOutput(str(reason), normalize)


def _modules(modules: Any) -> list[tuple[str, str]]:
    """Kind and folder of each module, in order."""
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CorruptCheckpoint("modules.json is no list of modules")
    listed = [JsonSettings("modules.json", module) for module in modules]
    return [(module.get("type", "").rpartition(".")[2], module.get("path", "")) for module in listed]


def _pooling(
    modules: list[tuple[str, str]], open_file: Callable[[str], bytes | None]
) -> tuple[PoolingMode, ...]:
    modes: tuple[PoolingMode, ...] = ()
    for kind, path in modules:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise _NotKnown(f"modules.json asks for a {kind} module, which is not built")
        if kind == "Pooling":
            name = str(PurePosixPath(path, "config.json"))
            content = open_file(name)
            if content is None:
                raise CorruptCheckpoint(f"modules.json names {name}, which is not in the folder")
            modes = _modes(JsonSettings.parse(content, name))
    if not modes:
        raise _NotKnown("modules.json names no Pooling module")
    return modes


def _prompts(files: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """What is put before a text, by name; refuses what would change every text before it is tokenized."""
    transformer, sentence = (
        JsonSettings.parse(files.get(name), name)
        for name in ("sentence_bert_config.json", "config_sentence_transformers.json")
    )
    if transformer.get_optional("do_lower_case", bool):
        raise _NotKnown("sentence_bert_config.json asks to lower-case texts first, which is not built")
    default, prompts = (
        sentence.get_optional("default_prompt_name", str),
        sentence.get_optional("prompts", dict) or {},
    )
    if default is not None and prompts.get(default):
        raise _NotKnown(
            f"the checkpoint puts its prompt {quoted(default)} before every text, which is not built"
        )
    if not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CorruptCheckpoint("config_sentence_transformers.json has a prompt that is not a string")
    return tuple((name, prompt) for name, prompt in prompts.items() if prompt)


def _modes(config: JsonSettings) -> tuple[PoolingMode, ...]:
    if isinstance(config.values.get("pooling_mode"), list):
        names = config.get("pooling_mode", [])
    elif "pooling_mode" in config.values:
        names = [config.get("pooling_mode", "")]
    else:
        names = [name for name, flag in FLAGS.items() if config.get(flag, False)]
        names += [key for key in config.unread() if config.values[key] is True and "pooling_mode" in key]
    if not names:
        raise _NotKnown(f"{config.name} names no pooling")
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise _NotKnown(f"{config.name} asks for the pooling {quoted(name)}, which is not built")
    return tuple(MODES[name] for name in names)


def write_head(head: PooledVector, width: int, max_tokens: int | None) -> dict[str, bytes]:
    """The files that say to `sentence-transformers`, old and new, how the embedding is made."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if head.normalize:
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
