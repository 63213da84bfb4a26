"""Read and write the definition of a folder's output: modules.json and the files beside it. Free of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import CorruptCheckpoint, quoted
from unmask.model.spec import (
    CheckpointOutput,
    EncoderSpec,
    MultiVector,
    PooledVector,
    PoolingMode,
    UnitLength,
    UnknownOutput,
)
from unmask.model.weights.multi_vector_files import (
    MODEL_TYPES,
    STANFORD_CLASS,
    read_multi_vector,
    read_stanford,
    write_multi_vector,
)
from unmask.model.weights.sentence_modules import (
    FoundLayers,
    Module,
    NotKnown,
    OpenFile,
    layer_files,
    modules_of,
    read_layers,
    to_json,
)
from unmask.settings import JsonSettings

MODES: dict[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""Names in 1_Pooling/config.json -> ours, in the order in which the older form concatenates several."""

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The older form of 1_Pooling/config.json: one boolean per mode."""

EMBEDDING_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)


@dataclass(frozen=True)
class FoundOutput:
    """The output that a folder defines, and where its weights are."""

    head: CheckpointOutput
    folders: tuple[str, ...] = ()
    """The folder of the weights of each of its layers; "" for the encoder's own files."""


def read_head(files: Mapping[str, bytes], open_file: OpenFile) -> CheckpointOutput:
    """The output that the folder defines for a text, or why it is unknown; see `read_output`."""
    return read_output(files, open_file).head


def read_output(
    files: Mapping[str, bytes],
    open_file: OpenFile,
    *,
    classes: Sequence[str] = (),
    stanford_width: int | None = None,
) -> FoundOutput:
    """The output that the folder defines for a text, or why it is unknown.

    Args:
        files: those of `EMBEDDING_FILES` that the folder has.
        open_file: returns the contents of another file of the folder, or None if there is no such file.
        classes: ``architectures`` in config.json.
        stanford_width: the width of the vectors that ``linear.weight`` makes; None if there is none.

    Raises:
        CorruptCheckpoint: a file is not JSON, or modules.json names a missing file.
    """
    if "modules.json" not in files:
        if STANFORD_CLASS in classes and stanford_width is not None:
            found = read_stanford(open_file, stanford_width)
            return FoundOutput(found.head, found.folders)
        return FoundOutput(UnknownOutput("the checkpoint does not say how to make one vector of a text"))
    modules = modules_of(files["modules.json"])
    settings = JsonSettings.parse(files.get(EMBEDDING_FILES[1]), EMBEDDING_FILES[1])
    try:
        if settings.get_optional("model_type", str) in MODEL_TYPES:
            several = read_multi_vector(files, modules, open_file)
            return FoundOutput(several.head, several.folders)
        return _pooled(files, modules, open_file)
    except NotKnown as reason:
        normalize = any(module.kind == "Normalize" for module in modules)
        return FoundOutput(UnknownOutput(str(reason), normalize))


def _pooled(files: Mapping[str, bytes], modules: Sequence[Module], open_file: OpenFile) -> FoundOutput:
    kinds = [module.kind for module in modules]
    if kinds.count("Pooling") != 1 or "Transformer" not in kinds[: kinds.index("Pooling")]:
        for kind in kinds:
            if kind not in ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm"):
                raise NotKnown(f"modules.json asks for a {kind} module, which is not built")
        raise NotKnown("modules.json does not name one Pooling module after a Transformer")
    place = kinds.index("Pooling")
    # Norms of sentence vectors before there are any change nothing.
    before = [module.kind for module in modules[:place] if module.kind != "Normalize"]
    if before != ["Transformer"]:
        raise NotKnown(f"modules.json asks for a {before[-1]} module before pooling, which is not built")
    pooling = modules[place].config(open_file)
    found = read_layers(modules[place + 1 :], open_file, "sentence_embedding")
    layers = found.layers
    normalize = bool(layers) and layers[-1] == UnitLength()
    layers = layers[:-1] if normalize else layers
    prompts, default = _prompts(files)
    transformer = JsonSettings.parse(files.get(EMBEDDING_FILES[2]), EMBEDDING_FILES[2])
    settings = JsonSettings.parse(files.get(EMBEDDING_FILES[1]), EMBEDDING_FILES[1])
    dimensions = settings.get_optional("truncate_dim", int)
    if dimensions is not None and normalize:  # they cut the normalized vector, and do not normalize it again
        layers, normalize = (*layers, UnitLength()), False
    if transformer.get_optional("do_lower_case", bool):
        raise NotKnown("sentence_bert_config.json asks to lower-case texts first, which is not built")
    if default is not None:
        raise NotKnown(
            f"the checkpoint puts its prompt {quoted(default)} before every text, which is not built"
        )
    if not pooling.get("include_prompt", True):
        raise NotKnown(f"{pooling.name} leaves the prompt's tokens out, which is not built")
    head = PooledVector(
        _modes(pooling),
        normalize,
        layers,
        dimensions,
        prompts,
        default,
        pooling.get("include_prompt", True),
        transformer.get_optional("do_lower_case", bool) or False,
    )
    return FoundOutput(head, found.folders[: len(layers)])


def _prompts(files: Mapping[str, bytes]) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Prompts by name, and the name of the one that is put before every text."""
    settings = JsonSettings.parse(files.get(EMBEDDING_FILES[1]), EMBEDDING_FILES[1])
    default = settings.get_optional("default_prompt_name", str)
    prompts = settings.get_optional("prompts", dict) or {}
    if not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise CorruptCheckpoint(f"{settings.name} has a prompt that is not a string")
    return tuple((name, prompt) for name, prompt in prompts.items() if prompt), (
        default if prompts.get(default) else None
    )


def _modes(config: JsonSettings) -> tuple[PoolingMode, ...]:
    if isinstance(config.values.get("pooling_mode"), list):
        names = config.get("pooling_mode", [])
    elif "pooling_mode" in config.values:
        names = [config.get("pooling_mode", "")]
    else:
        names = [name for name, flag in FLAGS.items() if config.get(flag, False)]
        names += [key for key in config.unread() if config.values[key] is True and "pooling_mode" in key]
    if not names:
        raise NotKnown(f"{config.name} names no pooling")
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise NotKnown(f"{config.name} asks for the pooling {quoted(name)}, which is not built")
    return tuple(MODES[name] for name in names)


def write_output(
    head: CheckpointOutput, spec: EncoderSpec, max_tokens: int | None, kept: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The files that define an output, without those of weights; ``kept`` are the files as they were read."""
    if isinstance(head, MultiVector):
        return write_multi_vector(head, spec.width, max_tokens)
    if isinstance(head, PooledVector):
        return write_head(head, spec.width, max_tokens, kept)
    return {}


def write_head(
    head: PooledVector, width: int, max_tokens: int | None, kept: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    """The files that define the embedding for old and new versions of `sentence-transformers`.

    Args:
        head: the definition.
        width: the encoder's.
        max_tokens: the most tokens of a text; None if there is no limit.
        kept: the files as they were read, of which other keys are kept.
    """
    after = (*head.projections, UnitLength()) if head.normalize else head.projections
    layers = layer_files(after, 2, width * len(head.pooling), "sentence_embedding")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *((path, kind) for kind, path, _ in layers)]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    files: dict[str, object] = {"modules.json": listed, "1_Pooling/config.json": _pooling(head, width)}
    files |= {f"{path}/config.json": config for _, path, config in layers if config is not None}
    if max_tokens is not None or head.lower_case:
        limit = {} if max_tokens is None else {"max_seq_length": max_tokens}
        files["sentence_bert_config.json"] = limit | {"do_lower_case": head.lower_case}
    if head.prompts or head.default_prompt or head.dimensions is not None:
        name = EMBEDDING_FILES[1]
        settings = dict(JsonSettings.parse((kept or {}).get(name), name).values)
        settings |= {"prompts": dict(head.prompts), "default_prompt_name": head.default_prompt}
        if head.dimensions is not None:
            settings["truncate_dim"] = head.dimensions
        files[name] = settings
    return {name: to_json(value) for name, value in files.items()}


def _pooling(head: PooledVector, width: int) -> dict[str, Any]:
    names = [name for name, ours in MODES.items() if ours in head.pooling]
    if tuple(MODES[name] for name in names) == head.pooling:
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        pooling |= {flag: name in names for name, flag in FLAGS.items()}
    else:
        back = {ours: name for name, ours in MODES.items()}
        pooling = {"embedding_dimension": width, "pooling_mode": [back[mode] for mode in head.pooling]}
    return pooling if head.pools_prompt else pooling | {"include_prompt": False}


__all__ = [
    "EMBEDDING_FILES",
    "FoundLayers",
    "FoundOutput",
    "read_head",
    "read_output",
    "to_json",
    "write_head",
    "write_output",
]
