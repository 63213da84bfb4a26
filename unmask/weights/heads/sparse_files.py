"""Read and write the definition of a model with one weight per word (SPLADE). Free of torch.

The modules are a Transformer with its MLM head and a SpladePooling; or a Router sends documents to these and
queries to a SparseStaticEmbedding, a table with one weight per word.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from unmask.base.files import leaves_folder, read_bytes
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, quoted
from unmask.spec import SparseVector
from unmask.text import Tokenizer
from unmask.weights.heads.sentence_modules import (
    CLASSES,
    ST_CONFIG,
    STATIC_MODULE,
    TRANSFORMER_CONFIG,
    Module,
    NotKnown,
    OpenFile,
    StoredOutput,
    module_files,
    modules_of,
    prompts_of,
    to_json,
    transformer_settings,
)
from unmask.weights.tensors import WEIGHTS, check_stored_file

TRANSFORMERS = ("Transformer", "MLMTransformer")
ROUTERS = ("Router", "Asym")
ROUTER_CONFIG = "router_config.json"
QUERY_MODULE = "query_0_SparseStaticEmbedding"
"""The folder of the table in what is written here."""

ACTIVATIONS: dict[str, Literal["log1p_relu", "log1p_log1p_relu"]] = {
    "relu": "log1p_relu",
    "log1p_relu": "log1p_log1p_relu",
}
"""Their names, which leave out one logarithm, -> ours."""

Routes = Mapping[str, tuple[Module, ...]]
"""The modules of each route of a Router."""


def is_sparse(modules: Sequence[Module], settings: JsonSettings) -> bool:
    """Whether a folder with modules.json and config_sentence_transformers.json defines a sparse model."""
    model_type = settings.get_optional("model_type", str)
    return model_type == "SparseEncoder" or any(module.kind == "SpladePooling" for module in modules)


def read_sparse(files: Mapping[str, bytes], modules: Sequence[Module], open_file: OpenFile) -> SparseVector:
    """The definition in a folder.

    Raises:
        NotKnown: it asks for something that is not built.
    """
    documents, static = tuple(modules), False
    if modules and modules[0].kind in ROUTERS:
        if len(modules) > 1:
            raise NotKnown(
                f"modules.json asks for a {modules[1].kind} module after a Router, which is not built"
            )
        routes = _routes(modules[0], open_file)
        if set(routes) != {"query", "document"}:
            raise NotKnown(f"the Router has the routes {', '.join(sorted(routes))}, not query and document")
        documents = routes["document"]
        static = [module.kind for module in routes["query"]] == ["SparseStaticEmbedding"]
        if not static and routes["query"] != documents:
            raise NotKnown("the Router encodes queries by modules of their own, which is not built")
    kinds = [module.kind for module in documents]
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        raise NotKnown(f"a sparse vector by the modules {', '.join(kinds) or 'none'} is not built")
    pooling = documents[1].config(open_file)
    settings = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    prompts = prompts_of(settings)
    strategy, activation = pooling.get("pooling_strategy", "max"), pooling.get("activation_function", "relu")
    if strategy not in ("max", "sum"):
        raise NotKnown(f"{pooling.name} asks for the pooling {quoted(strategy)}, which is not built")
    if activation not in ACTIVATIONS:
        raise NotKnown(f"{pooling.name} asks for the activation {quoted(activation)}, which is not built")
    return SparseVector(
        "max" if strategy == "max" else "sum",
        ACTIVATIONS[activation],
        static,
        tuple((name, prompt) for name, prompt in prompts.items() if prompt),
        settings.get_optional("max_active_dims", int),
    )


def _routes(router: Module, open_file: OpenFile) -> Routes:
    """The routes of a Router module.

    Raises:
        CorruptCheckpoint: its file is missing or is not what it should be.
    """
    for name in (ROUTER_CONFIG, "config.json"):
        content = open_file(str(PurePosixPath(router.path, name)))
        config = JsonSettings.parse(content, name)
        if "types" in config.values:
            break
    else:
        raise CorruptCheckpoint(f"modules.json names a Router, and the folder has no {ROUTER_CONFIG}")
    types: dict[str, Any] = config.get("types", {})
    structure: dict[str, Any] = config.get("structure", {})
    routes = {}
    for route, ids in structure.items():
        if not isinstance(ids, list) or not all(isinstance(types.get(id_), str) for id_ in ids):
            raise CorruptCheckpoint(
                f"{config.name} names a module of the route {quoted(route)} without a type"
            )
        routes[route] = tuple(
            Module(types[id_].rpartition(".")[2], str(PurePosixPath(router.path, id_)).removeprefix("."))
            for id_ in ids
        )
    return routes


def encoder_folder(folder: Path) -> Path:
    """The folder of the encoder's own files: the checkpoint's, or that of its first module.

    Raises:
        CorruptCheckpoint: modules.json is not a list of modules, or names a folder outside the checkpoint.
    """
    listed = folder / "modules.json"
    if (folder / "config.json").exists() or not listed.exists():
        return folder
    check_stored_file(listed)
    modules = modules_of(read_bytes(listed, CorruptCheckpoint))
    if modules and modules[0].kind in ROUTERS:
        modules = _routes(modules[0], partial(_content, folder)).get("document", ())
    inside = [module.path for module in modules if module.kind in (*TRANSFORMERS, STATIC_MODULE)]
    return folder if not inside or leaves_folder(inside[0]) else folder / inside[0]


def query_weights(
    folder: Path, output: StoredOutput, tokenizer: Tokenizer | None
) -> NDArray[np.float32] | None:
    """The weight of each word for queries; None if the model has no such table.

    Raises:
        CorruptCheckpoint: the table is missing, or is for another vocabulary than that of the tokenizer.
    """
    if not isinstance(output.head, SparseVector) or not output.head.static_queries or tokenizer is None:
        return None

    open_file = partial(_content, folder)
    (router,) = modules_of(read_bytes(folder / "modules.json", CorruptCheckpoint))
    (module,) = _routes(router, open_file)["query"]
    weights_folder, place = folder / module.path, PurePosixPath(module.path)
    theirs = open_file(str(place / "tokenizer.json"))
    if theirs is not None:
        vocabulary = Tokenizer.from_files({"tokenizer.json": theirs}).engine.get_vocab()
        if vocabulary != tokenizer.engine.get_vocab():
            raise CorruptCheckpoint(f"the tokenizer of {place} has another vocabulary than the encoder's")
    config = JsonSettings.parse(open_file(str(place / "config.json")), f"{place}/config.json")
    path = config.get_optional("path", str)
    if path is not None and path.endswith(".json"):
        name = PurePosixPath(path).name
        content = open_file(str(place / name)) or open_file(name)
        if content is None:
            raise CorruptCheckpoint(f"{config.name} names {name}, which is not in the folder")
        return _of_json(JsonSettings.parse(content, name), tokenizer)
    if not (weights_folder / WEIGHTS).exists():
        raise CorruptCheckpoint(f"{place} has no {WEIGHTS} with the weights of words")
    check_stored_file(weights_folder / WEIGHTS)
    try:
        weight = load_file(weights_folder / WEIGHTS).get("weight")
    except SafetensorError as error:
        raise CorruptCheckpoint(f"{weights_folder / WEIGHTS} is damaged or incomplete: {error}") from None
    if weight is None or weight.shape != (tokenizer.vocabulary_size,):
        raise CorruptCheckpoint(
            f"{place}/{WEIGHTS} does not hold one weight for each of {tokenizer.vocabulary_size} words"
        )
    return weight.astype(np.float32)


def _content(folder: Path, name: str) -> bytes | None:
    return read_bytes(folder / name, CorruptCheckpoint) if (folder / name).exists() else None


def _of_json(table: JsonSettings, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Weights by word; words without one have 0."""
    weights = np.zeros(tokenizer.vocabulary_size, dtype=np.float32)
    unknown = tokenizer.special_tokens.get("unk")
    for word in table.values:
        id_ = tokenizer.token_to_id(word)
        if id_ is None and unknown is not None:  # they give its weight to the token for unknown words
            id_ = tokenizer.token_to_id(unknown)
        if id_ is not None:
            weights[id_] = table.get(word, 0.0)
    return weights


def write_sparse(head: SparseVector, max_tokens: int | None, vocabulary: int) -> dict[str, bytes]:
    """The files that define the output for `sentence-transformers`, without those of weights."""
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    pooling = {
        "pooling_strategy": head.pooling,
        "activation_function": names[head.activation],
        "embedding_dimension": vocabulary,
    }
    if head.static_queries:
        place = "document_1_SpladePooling"
        kinds = {QUERY_MODULE: "SparseStaticEmbedding", "": "Transformer", place: "SpladePooling"}
        files = module_files([("Router", "", None)])
        files[ROUTER_CONFIG] = {
            "types": {path: CLASSES[kind] for path, kind in kinds.items()},
            "structure": {"query": [QUERY_MODULE], "document": ["", place]},
            "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
        }
        files |= {f"{QUERY_MODULE}/config.json": {"frozen": False}, f"{place}/config.json": pooling}
    else:
        files = module_files([("Transformer", "", None), ("SpladePooling", "1_SpladePooling", pooling)])
    prompts = dict(head.prompts)
    settings: dict[str, Any] = {
        "model_type": "SparseEncoder",
        "prompts": prompts | {kind: prompts.get(kind, "") for kind in ("query", "document")},
        "default_prompt_name": None,
        "similarity_fn_name": None,
    }
    if head.most_words is not None:
        settings["max_active_dims"] = head.most_words
    transformer = transformer_settings("fill-mask", "logits", "token_embeddings", max_tokens)
    files |= {TRANSFORMER_CONFIG: transformer, ST_CONFIG: settings}
    return {name: to_json(value) for name, value in files.items()}


def query_tokenizer(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer's files in the folder of the table, from which they are read there."""
    files = dict(tokenizer.files)
    name = "tokenizer_config.json"
    config = dict(JsonSettings.parse(files.get(name), name).values)
    if "tokenizer_class" not in config or "tokenizer.json" not in files:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config |= {f"{role}_token": piece for role, piece in tokenizer.special_tokens.items()}
        files[name] = json.dumps(config, indent=2).encode()
        files["tokenizer.json"] = str(tokenizer.engine.to_str()).encode()
    return {f"{QUERY_MODULE}/{name}": content for name, content in files.items()}
