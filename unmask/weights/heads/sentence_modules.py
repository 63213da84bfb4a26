"""The modules that modules.json lists, and their settings, as values. Free of torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, assert_never

from unmask.base.files import leaves_folder
from unmask.base.json_settings import JsonSettings, parse_json
from unmask.errors import CorruptCheckpoint, TensorMismatch, UnsafeCheckpoint, quoted
from unmask.spec import (
    POOLING,
    Activation,
    CheckpointOutput,
    Dense,
    EncoderSpec,
    LayerNorm,
    OutputLayer,
    PoolingMode,
    UnitLength,
)
from unmask.spec.embedding_head import output_layers, pooled_width
from unmask.weights.tensors import WEIGHTS, StoredTensor, tensors_of_file

OpenFile = Callable[[str], bytes | None]
"""The contents of a file of the folder by its name; None if there is no such file."""

ACTIVATIONS: dict[str, Activation | None] = {
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
}
"""Classes that a Dense module's config.json names -> ours."""

NORM_EPS = 1e-5
"""The epsilon of their LayerNorm module, which its config.json does not store."""


ST_CONFIG, TRANSFORMER_CONFIG = "config_sentence_transformers.json", "sentence_bert_config.json"

CLASSES: Mapping[str, str] = {
    **{
        kind: f"sentence_transformers.{package}.{kind}"
        for kind, package in {
            "Transformer": "base.modules.transformer",
            "Router": "base.modules.router",
            "Dense": "base.modules.dense",
            "Normalize": "base.modules.normalize",
            "LayerNorm": "sentence_transformer.modules.layer_norm",
            "Pooling": "sentence_transformer.modules.pooling",
            "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask",
            "SpladePooling": "sparse_encoder.modules.splade_pooling",
            "StaticEmbedding": "sentence_transformer.modules.static_embedding",
            "SparseStaticEmbedding": "sparse_encoder.modules.sparse_static_embedding",
        }.items()
    },
    "SharedQueryTransformer": "unmask.SharedQueryTransformer",
}
"""The class of each kind of module that is written, from version 6 of `sentence-transformers` on."""

STATIC_MODULE = "StaticEmbedding"
"""The kind of the module that is a table of vectors of tokens, of which it takes the mean."""

ModuleFile = tuple[str, str, Mapping[str, Any] | None]
"""Kind, folder and config.json of a module that is written; None for no config.json."""


class NotKnown(Exception):
    """The folder does not define a supported output; the message gives the reason."""


@dataclass(frozen=True)
class Module:
    """One entry of modules.json."""

    kind: str
    """The name of its class, without the package."""
    path: str
    """Its folder; "" for the checkpoint's own."""

    def config(self, open_file: OpenFile) -> JsonSettings:
        """Its config.json.

        Raises:
            CorruptCheckpoint: the file is missing, or is not a JSON object.
        """
        name = str(PurePosixPath(self.path, "config.json"))
        content = open_file(name)
        if content is None:
            raise CorruptCheckpoint(f"modules.json names {name}, which is not in the folder")
        return JsonSettings.parse(content, name)


@dataclass(frozen=True)
class FoundLayers:
    """Layers after the encoder."""

    layers: tuple[OutputLayer, ...]
    folders: tuple[str, ...]
    """The folder of each layer's weights."""


def modules_of(content: bytes) -> tuple[Module, ...]:
    """The modules of modules.json, in order.

    Raises:
        CorruptCheckpoint: it is not a list of modules.
    """
    modules = parse_json(content, "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CorruptCheckpoint("modules.json is not a list of modules")
    listed = [JsonSettings("modules.json", module) for module in modules]
    named_modules = tuple(
        Module(entry.get("type", "").rpartition(".")[2], entry.get("path", "")) for entry in listed
    )
    for module in named_modules:
        if leaves_folder(module.path):
            raise CorruptCheckpoint(f"modules.json names {quoted(module.path)}, which is outside the folder")
    return named_modules


def read_layers(modules: Sequence[Module], open_file: OpenFile, reads: str) -> FoundLayers:
    """The layers that Dense, LayerNorm and Normalize modules define.

    Args:
        modules: modules of these kinds, in order.
        open_file: opens a file of the folder.
        reads: the feature that they read: ``sentence_embedding`` or ``token_embeddings``.

    Raises:
        NotKnown: a module is of another kind, or asks for something that is not built.
    """
    layers: list[OutputLayer] = []
    for module in modules:
        match module.kind:
            case "Dense":
                layers.append(_dense(module.config(open_file), reads))
            case "LayerNorm":
                layers.append(LayerNorm(NORM_EPS))
            case "Normalize":
                layers.append(UnitLength())
            case kind:
                raise NotKnown(f"modules.json asks for a {kind} module, which is not built")
    return FoundLayers(tuple(layers), tuple(module.path for module in modules))


def _dense(config: JsonSettings, reads: str) -> Dense:
    source = config.get("module_input_name", reads)
    if source != reads or config.get_optional("module_output_name", str) not in (None, reads, "scores"):
        raise NotKnown(f"{config.name} asks for a Dense module on {quoted(source)}, which is not built here")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise NotKnown(f"{config.name} asks for the activation {quoted(activation)}, which is not built")
    return Dense(
        config.get("out_features", 0),
        config.get("bias", True),
        ACTIVATIONS[activation],
        config.get("use_residual", False),
    )


def prompts_of(settings: JsonSettings) -> dict[str, str | None]:
    """The prompts of config_sentence_transformers.json, by name.

    Raises:
        CorruptCheckpoint: one is not a string.
    """
    prompts = dict(settings.get_optional("prompts", dict) or {})
    if not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise CorruptCheckpoint(f"{settings.name} has a prompt that is not a string")
    return prompts


def module_files(
    modules: Sequence[ModuleFile], class_of: Callable[[str], str] = CLASSES.__getitem__
) -> dict[str, object]:
    """modules.json, which names a class for each kind of module, and each config.json."""
    files: dict[str, object] = {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": class_of(kind)}
            for index, (kind, path, _) in enumerate(modules)
        ]
    }
    return files | {f"{path}/config.json": config for _, path, config in modules if config is not None}


def transformer_settings(task: str, reads: str, gives: str, max_tokens: int | None) -> dict[str, Any]:
    """sentence_bert_config.json: the task, the output that is read and its name, and the longest text."""
    settings = {
        "transformer_task": task,
        "modality_config": {"text": {"method": "forward", "method_output_name": reads}},
        "module_output_name": gives,
    }
    return settings if max_tokens is None else settings | {"max_seq_length": max_tokens}


def layer_files(layers: Sequence[OutputLayer], first: int, width: int, reads: str) -> list[ModuleFile]:
    """The module of each layer.

    Args:
        layers: the layers, in order.
        first: the number of the first module in modules.json.
        width: the width of the vectors that the first layer reads.
        reads: the feature that they read: ``sentence_embedding`` or ``token_embeddings``.
    """
    files: list[ModuleFile] = []
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    tokens = {"module_input_name": reads} if reads == "token_embeddings" else {}
    for number, layer in enumerate(layers, start=first):
        match layer:
            case Dense():
                if layer.activation not in names:
                    raise NotKnown(f"a Dense module with the activation {layer.activation} cannot be written")
                sizes = {"in_features": width, "out_features": layer.width, "bias": layer.bias}
                settings = {"activation_function": names[layer.activation]}
                residual = {"use_residual": True} if layer.residual else {}
                files.append(("Dense", f"{number}_Dense", sizes | settings | tokens | residual))
                width = layer.width
            case LayerNorm():
                files.append(("LayerNorm", f"{number}_LayerNorm", {"dimension": width}))
            case UnitLength():
                files.append(("Normalize", f"{number}_Normalize", tokens or None))
            case _:
                assert_never(layer)
    return files


def layer_shapes(layers: Sequence[OutputLayer], width: int) -> list[dict[str, tuple[int, ...]]]:
    """The tensors of each layer, by their names in its module's file, which are also ours."""
    shapes_of_layers: list[dict[str, tuple[int, ...]]] = []
    for layer in layers:
        shapes: dict[str, tuple[int, ...]] = {}
        match layer:
            case Dense():
                shapes["linear.weight"] = (layer.width, width)
                if layer.bias:
                    shapes["linear.bias"] = (layer.width,)
                if layer.residual and layer.width != width:
                    shapes["residual.weight"] = (layer.width, width)
                width = layer.width
            case LayerNorm():
                shapes = {"norm.weight": (width,), "norm.bias": (width,)}
            case UnitLength():
                pass
            case _:
                assert_never(layer)
        shapes_of_layers.append(shapes)
    return shapes_of_layers


def to_json(value: object) -> bytes:
    """The bytes of a JSON file: indented, in the order given, ending in a newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


MODES: dict[str, PoolingMode] = {names.name: mode for mode, names in POOLING.items()}


def modes_of(config: JsonSettings) -> tuple[PoolingMode, ...]:
    """The pooling modes of 1_Pooling/config.json.

    Raises:
        NotKnown: there are none, or one is not built.
    """
    if isinstance(config.values.get("pooling_mode"), list):
        names = config.get("pooling_mode", [])
    elif "pooling_mode" in config.values:
        names = [config.get("pooling_mode", "")]
    else:
        names = [names.name for names in POOLING.values() if config.get(names.flag, False)]
        names += [key for key in config.unread() if config.values[key] is True and "pooling_mode" in key]
    if not names:
        raise NotKnown(f"{config.name} names no pooling")
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise NotKnown(f"{config.name} asks for the pooling {quoted(name)}, which is not built")
    return tuple(MODES[name] for name in names)


def write_pooling(modes: tuple[PoolingMode, ...], width: int, *, pools_prompt: bool = True) -> dict[str, Any]:
    """1_Pooling/config.json, in the older form if its order is that of ``modes``."""
    if tuple(mode for mode in POOLING if mode in modes) == modes:
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        pooling |= {names.flag: mode in modes for mode, names in POOLING.items()}
    else:
        pooling = {"embedding_dimension": width, "pooling_mode": [POOLING[mode].name for mode in modes]}
    return pooling if pools_prompt else pooling | {"include_prompt": False}


PICKLED = "pytorch_model.bin"

STANFORD_TENSOR = "linear.weight"
"""The projection in the files of a ColBERT checkpoint by Stanford's code, beside the encoder's tensors."""


@dataclass(frozen=True)
class StoredOutput:
    """The output that a folder defines, and where its weights are."""

    head: CheckpointOutput
    folders: tuple[str, ...] = ()
    """The folder of the weights of each of its layers; "" for the encoder's own files."""


def output_tensors(
    folder: Path, output: StoredOutput, spec: EncoderSpec, encoder_tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Our name of each tensor of the output's layers, and where it is stored.

    Args:
        folder: the checkpoint's.
        output: its output.
        spec: its encoder.
        encoder_tensors: the tensors in the encoder's files.

    Raises:
        CorruptCheckpoint: a file is missing or damaged.
        UnsafeCheckpoint: a module's weights are pickled.
        TensorMismatch: a tensor is missing, has another shape than the folder says, or is not known.
    """
    tensors: dict[str, StoredTensor] = {}
    layers = output_layers(output.head)
    shapes = layer_shapes(layers, pooled_width(output.head, spec))
    for index, (shapes_of_layer, inside) in enumerate(zip(shapes, output.folders, strict=True)):
        if not shapes_of_layer:
            continue
        stored = encoder_tensors if inside == "" else _module_tensors(folder, inside)
        if inside != "":
            unknown = sorted(stored.keys() - shapes_of_layer.keys())
            if unknown:
                raise TensorMismatch(
                    f"{inside}/{WEIGHTS} holds {unknown[0]}, which its config.json does not ask for"
                )
        for name, shape in shapes_of_layer.items():
            where = str(PurePosixPath(inside, WEIGHTS))
            if name not in stored:
                raise TensorMismatch(f"{where} lacks the tensor {name}, which its config.json asks for")
            if stored[name].shape != shape:
                has, asked = (" x ".join(map(str, sizes)) for sizes in (stored[name].shape, shape))
                raise TensorMismatch(f"{name} in {where} has shape {has}, and the folder asks for {asked}")
            tensors[f"output.{index}.{name}"] = replace(stored[name], key=stored[name].key or name)
    return tensors


def _module_tensors(folder: Path, inside: str) -> Mapping[str, StoredTensor]:
    path = folder / inside / WEIGHTS
    if path.exists():
        return tensors_of_file(path)
    if (path.parent / PICKLED).exists():
        raise UnsafeCheckpoint(
            f"{path.parent} holds only pickled weights, which can run code when opened; "
            f"make a safe copy with: unmask convert {folder} NEW_FOLDER"
        )
    raise CorruptCheckpoint(f"modules.json names {inside}, whose {WEIGHTS} is not in the folder")
