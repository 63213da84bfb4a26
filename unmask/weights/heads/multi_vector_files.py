"""Read and write the definition of a model with one vector per token. Free of torch.

Three forms are read: that of `sentence-transformers` from version 6 on, PyLate's, and that of Stanford's
ColBERT. All are written in the first.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, quoted
from unmask.spec import TEXT_KINDS, Dense, MultiVector, QueryExpansion, UnitLength
from unmask.weights.heads.sentence_modules import (
    ST_CONFIG,
    TRANSFORMER_CONFIG,
    Module,
    ModuleFile,
    NotKnown,
    OpenFile,
    layer_files,
    module_files,
    prompts_of,
    read_layers,
    to_json,
    transformer_settings,
)

PYLATE = "ColBERT"
"""The value of ``model_type`` in config_sentence_transformers.json that PyLate writes."""

MODEL_TYPES = ("MultiVectorEncoder", PYLATE)
"""The values of ``model_type`` for one vector per token."""

PUNCTUATION = tuple(string.punctuation)
"""The tokens without a vector, if PyLate's or Stanford's files name none."""

STANFORD_CLASS = "HF_ColBERT"
"""The class in config.json of a checkpoint that Stanford's code wrote."""

STANFORD_METADATA = "artifact.metadata"
"""The file of their settings."""

STANFORD_MARKERS = {"query": ("query_token_id", "[unused0]"), "document": ("doc_token_id", "[unused1]")}
"""Their key and default for the token that marks each kind of text."""

PYLATE_KEYS = (
    *("query_length", "document_length", "query_expansion", "do_query_expansion"),
    *("attend_to_expansion_tokens", "attend_to_mask_tokens", "query_prefix", "document_prefix"),
    "skiplist_words",
)
"""The keys of config_sentence_transformers.json that only PyLate writes."""


@dataclass(frozen=True)
class FoundMultiVector:
    """A definition, and where its weights are."""

    head: MultiVector
    folders: tuple[str, ...]
    """The folder of each layer's weights; "" for the encoder's own files."""


def stored_type(config: JsonSettings) -> str | None:
    """``model_type`` of config_sentence_transformers.json, or `PYLATE` where PyLate's other keys imply it.

    PyLate writes the key only if the checkpoint that it started from has it.
    """
    kind = config.get_optional("model_type", str)
    return PYLATE if kind is None and any(key in config.values for key in PYLATE_KEYS) else kind


def read_multi_vector(
    files: Mapping[str, bytes], modules: Sequence[Module], open_file: OpenFile
) -> FoundMultiVector:
    """The definition in a folder with modules.json.

    Raises:
        NotKnown: it asks for something that is not built.
        CorruptCheckpoint: a file or a value is not what it should be.
    """
    config = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    transformer = JsonSettings.parse(files.get(TRANSFORMER_CONFIG), TRANSFORMER_CONFIG)
    pylate = stored_type(config) == PYLATE
    if not modules or modules[0].kind not in ("Transformer", "ColBERTTransformer"):
        raise NotKnown("the first module of modules.json is not a Transformer")
    masks = [module for module in modules[1:] if module.kind == "MultiVectorMask"]
    rest = [module for module in modules[1:] if module.kind != "MultiVectorMask"]
    output_layers = read_layers(_on_tokens(rest, open_file), open_file, "token_embeddings")
    layers, normalize = output_layers.layers, pylate
    if not pylate and layers and layers[-1] == UnitLength():
        layers, normalize = layers[:-1], True
    skipped, kinds = _skipped(masks, config, open_file, pylate=pylate)
    expansion = _expansion(config, transformer)
    if expansion is not None and not masks and not pylate:
        raise NotKnown("modules.json expands queries and names no MultiVectorMask module, which is not built")
    prompts, markers = _prompts(config)
    head = MultiVector(
        projections=layers,
        normalize=normalize,
        prompts=prompts,
        markers=markers,
        query_tokens=_length("query", config, transformer, expansion),
        document_tokens=_length("document", config, transformer, None),
        expansion=expansion,
        skipped_words=skipped,
        skipped_in=kinds,
        mean_score=config.get_optional("similarity_fn_name", str) == "meanmaxsim",
    )
    return FoundMultiVector(head, output_layers.folders[: len(layers)])


def read_stanford(open_file: OpenFile, width: int) -> FoundMultiVector:
    """The definition in a folder of Stanford's ColBERT; ``linear.weight`` gives vectors of ``width``."""
    metadata = JsonSettings.parse(open_file(STANFORD_METADATA), STANFORD_METADATA)
    prompts = tuple(
        (kind, (metadata.get_optional(key, str) or default) + " ")
        for kind, (key, default) in STANFORD_MARKERS.items()
    )
    punctuation = PUNCTUATION if metadata.get("mask_punctuation", True) else ()
    length = metadata.get_optional("query_maxlen", int) or 32
    head = MultiVector(
        projections=(Dense(width, bias=False),),
        prompts=prompts,
        markers=tuple(prompt for _, prompt in prompts),
        document_tokens=metadata.get_optional("doc_maxlen", int),
        expansion=QueryExpansion(
            length, attended=metadata.get_optional("attend_to_mask_tokens", bool) or False
        ),
        skipped_words=punctuation,
    )
    return FoundMultiVector(head, ("",))


def _on_tokens(modules: Sequence[Module], open_file: OpenFile) -> list[Module]:
    """The modules that change token vectors; norms of sentence vectors do nothing here."""
    token_modules = []
    for module in modules:
        content = open_file(f"{module.path}/config.json") if module.kind == "Normalize" else None
        config = JsonSettings.parse(content, f"{module.path}/config.json")
        reads = config.get("module_input_name", "sentence_embedding")
        if module.kind != "Normalize" or reads == "token_embeddings":
            token_modules.append(module)
    return token_modules


def _skipped(
    masks: Sequence[Module], config: JsonSettings, open_file: OpenFile, *, pylate: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens without a vector, and the kinds of text in which they have none."""
    if pylate and not masks:
        words = config.get_optional("skiplist_words", list)
        return PUNCTUATION if words is None else _words(words, config.name), ("document",)
    if not masks:
        return (), ("document",)
    if len(masks) > 1:
        raise NotKnown("modules.json names several MultiVectorMask modules, which is not built")
    settings = masks[0].config(open_file)
    if settings.get_optional("keep_only_token_ids", list):
        raise NotKnown(f"{settings.name} keeps only the tokens of images, which is not built")
    words = settings.get_optional("skiplist_words", list) or []
    kinds = settings.get_optional("skiplist_tasks", list)
    return _words(words, settings.name), _words(["document"] if kinds is None else kinds, settings.name)


def _words(words: list[Any], name: str) -> tuple[str, ...]:
    if not all(isinstance(word, str) for word in words):
        raise CorruptCheckpoint(f"{name} has a list of words of which one is not a string")
    return tuple(words)


def _prompts(config: JsonSettings) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Prompts by name, each after the marker that PyLate inserts; and those markers."""
    prompts = prompts_of(config)
    markers = []
    for kind in TEXT_KINDS:
        marker = config.get_optional(f"{kind}_prefix", str)
        if marker:
            prompts[kind] = marker + (prompts.get(kind) or "").removeprefix(marker)
            markers.append(marker)
    return tuple((name, prompt) for name, prompt in prompts.items() if prompt), tuple(markers)


def _expansion(config: JsonSettings, transformer: JsonSettings) -> QueryExpansion | None:
    """How queries are expanded, as `sentence-transformers` reads these keys."""
    for settings in (transformer, config):
        if "query_expansion" in settings.values:
            expansion = settings.get_optional("query_expansion", dict)
            return (
                None
                if expansion is None
                else _query_expansion(JsonSettings(f"query_expansion of {settings.name}", expansion))
            )
    if not any(key in config.values for key in PYLATE_KEYS):
        return None
    if config.get_optional("do_query_expansion", bool) is False:
        return None
    key = next(
        (key for key in ("attend_to_expansion_tokens", "attend_to_mask_tokens") if key in config.values), None
    )
    attended = key is not None and (config.get_optional(key, bool) or False)
    return QueryExpansion(config.get_optional("query_length", int) or 32, attended=attended)


def _query_expansion(settings: JsonSettings) -> QueryExpansion:
    strategy = settings.get("strategy", "fixed")
    if strategy not in ("fixed", "min"):
        raise NotKnown(f"{settings.name} asks for the strategy {quoted(strategy)}, which is not built")
    return QueryExpansion(
        settings.get("length", 32),
        truncates=strategy == "fixed",
        attended=settings.get_optional("attend", bool) or False,
        token=settings.get_optional("token", str),
    )


def _length(
    kind: str, config: JsonSettings, transformer: JsonSettings, expansion: QueryExpansion | None
) -> int | None:
    """The most tokens of a text of a kind; None if they are those of its expansion, or not limited."""
    if expansion is not None and expansion.truncates:
        return None
    length = transformer.get_optional(f"{kind}_length", int)
    if length is not None:
        return length
    if expansion is None or "query_expansion" in config.values:
        return config.get_optional(f"{kind}_length", int)
    return None


def write_multi_vector(head: MultiVector, width: int, max_tokens: int | None) -> dict[str, bytes]:
    """The files that define the output for `sentence-transformers`, without those of weights.

    Args:
        head: the definition.
        width: the encoder's.
        max_tokens: the most tokens of a text; None if there is no limit.
    """
    layers = layer_files(head.projections, 1, width, "token_embeddings")
    modules: list[ModuleFile] = [("Transformer", "", None), *layers]
    number = len(modules)
    mask = {
        "skiplist_words": list(head.skipped_words),
        "skiplist_tasks": list(head.skipped_in),
        "keep_only_token_ids": None,
    }
    modules.append(("MultiVectorMask", f"{number}_MultiVectorMask", mask))
    if head.normalize:
        tokens = {"module_input_name": "token_embeddings"}
        modules.append(("Normalize", f"{number + 1}_Normalize", tokens))
    files = module_files(modules)
    files |= {TRANSFORMER_CONFIG: _transformer(head, max_tokens), ST_CONFIG: _config(head)}
    return {name: to_json(value) for name, value in files.items()}


def _transformer(head: MultiVector, max_tokens: int | None) -> dict[str, Any]:
    written = transformer_settings("feature-extraction", "last_hidden_state", "token_embeddings", max_tokens)
    if head.query_tokens is not None:
        written["query_length"] = head.query_tokens
    if head.document_tokens is not None:
        written["document_length"] = head.document_tokens
    written["query_expansion"] = None
    if head.expansion is not None:
        written["query_expansion"] = {
            "strategy": "fixed" if head.expansion.truncates else "min",
            "attend": head.expansion.attended,
            "token": head.expansion.token,
            "length": head.expansion.length,
        }
    return written


def _config(head: MultiVector) -> dict[str, Any]:
    """config_sentence_transformers.json; a marker is written as PyLate's key, so that it stays one token."""
    prompts = dict(head.prompts)
    written: dict[str, Any] = {
        "model_type": "MultiVectorEncoder",
        "prompts": prompts | {kind: prompts.get(kind, "") for kind in TEXT_KINDS},
        "default_prompt_name": None,
        "similarity_fn_name": "meanmaxsim" if head.mean_score else "maxsim",
    }
    for kind in TEXT_KINDS:
        for marker in head.markers:
            if prompts.get(kind, "").startswith(marker):
                written[f"{kind}_prefix"] = marker
    return written
