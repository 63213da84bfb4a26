"""Read and write the definition of a folder's output: modules.json and the files beside it. Free of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnsafeCheckpoint
from unmask.spec import (
    CheckpointOutput,
    EncoderSpec,
    MultiVector,
    PairScore,
    PooledVector,
    PoolingMode,
    SparseVector,
    UnitLength,
    UnknownOutput,
)
from unmask.weights.heads.multi_vector_files import (
    MODEL_TYPES,
    STANFORD_CLASS,
    read_multi_vector,
    read_stanford,
    stored_type,
    write_multi_vector,
)
from unmask.weights.heads.pair_files import names_activation, read_pair, write_pair
from unmask.weights.heads.sentence_modules import (
    ST_CONFIG,
    STATIC_MODULE,
    TRANSFORMER_CONFIG,
    Module,
    ModuleFile,
    NotKnown,
    OpenFile,
    StoredOutput,
    layer_files,
    modes_of,
    module_files,
    modules_of,
    prompts_of,
    read_layers,
    to_json,
    write_pooling,
)
from unmask.weights.heads.sparse_files import is_sparse, read_sparse, write_sparse
from unmask.weights.tensors import tensors_of_file

WORD_LAYER, TOKEN_LAYER = "sparse_linear", "colbert_linear"
"""The names of BGE-M3's layers beside the encoder, which are published pickled, with the ending .pt."""

EMBEDDING_FILES = ("modules.json", ST_CONFIG, TRANSFORMER_CONFIG)


def read_head(files: Mapping[str, bytes], open_file: OpenFile) -> CheckpointOutput:
    """The output that the folder defines for a text, or why it is unknown; see `read_output`."""
    return read_output(files, open_file).head


def read_output(
    files: Mapping[str, bytes],
    open_file: OpenFile,
    *,
    config: JsonSettings | None = None,
    classes: int | None = None,
    stanford_width: int | None = None,
    static: bool = False,
) -> StoredOutput:
    """The output that the folder defines for a text, or why it is unknown.

    Args:
        files: those of `EMBEDDING_FILES` that the folder has.
        open_file: returns the contents of another file of the folder, or None if there is no such file.
        config: config.json.
        classes: the number of classes of the encoder's classifier of texts; None if it has none.
        stanford_width: the width of the vectors that ``linear.weight`` makes; None if there is none.
        static: whether the encoder has no layers.

    Raises:
        CorruptCheckpoint: a file is not JSON, or modules.json names a missing file.
    """
    config = config or JsonSettings("config.json", {})
    modules = modules_of(files["modules.json"]) if "modules.json" in files else ()
    try:
        if static and (not modules or modules[0].kind == STATIC_MODULE):
            return _static(files, modules, open_file, config)
        if "modules.json" not in files:
            return _without_modules(files, open_file, config, classes, stanford_width)
        return _with_modules(files, modules, open_file, config, classes)
    except NotKnown as reason:
        normalize = any(module.kind == "Normalize" for module in modules)
        return StoredOutput(UnknownOutput(str(reason), normalize))


def _without_modules(
    files: Mapping[str, bytes],
    open_file: OpenFile,
    config: JsonSettings,
    classes: int | None,
    stanford_width: int | None,
) -> StoredOutput:
    if stanford_width is not None and STANFORD_CLASS in (config.get_optional("architectures", list) or ()):
        stanford = read_stanford(open_file, stanford_width)
        return StoredOutput(stanford.head, stanford.folders)
    if classes == 1 or (classes is not None and names_activation(config)):
        return StoredOutput(*read_pair(files, (), config, open_file, classes))
    raise NotKnown("the checkpoint does not say how to make one vector of a text")


def _with_modules(
    files: Mapping[str, bytes],
    modules: Sequence[Module],
    open_file: OpenFile,
    config: JsonSettings,
    classes: int | None,
) -> StoredOutput:
    settings = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    kind = stored_type(settings)
    if kind == "CrossEncoder":
        return StoredOutput(*read_pair(files, modules, config, open_file, classes))
    if kind in MODEL_TYPES:
        several = read_multi_vector(files, modules, open_file)
        return StoredOutput(several.head, several.folders)
    if is_sparse(modules, settings):
        return StoredOutput(read_sparse(files, modules, open_file))
    return _pooled(files, modules, open_file)


def _pooled(files: Mapping[str, bytes], modules: Sequence[Module], open_file: OpenFile) -> StoredOutput:
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
    output = _after_pooling(modes_of(pooling), files, modules[place + 1 :], open_file)
    assert isinstance(output.head, PooledVector)
    pools_prompt = pooling.get("include_prompt", True)
    return replace(output, head=replace(output.head, pools_prompt=pools_prompt))


def _static(
    files: Mapping[str, bytes], modules: Sequence[Module], open_file: OpenFile, config: JsonSettings
) -> StoredOutput:
    """The mean of the vectors of tokens, normalized as config.json says, else as modules.json does."""
    output = _after_pooling(("mean",), files, modules[1:], open_file)
    normalize = config.get_optional("normalize", bool)
    if normalize is None or not isinstance(output.head, PooledVector):
        return output
    return replace(output, head=replace(output.head, normalize=normalize))


def _after_pooling(
    modes: tuple[PoolingMode, ...],
    files: Mapping[str, bytes],
    modules: Sequence[Module],
    open_file: OpenFile,
) -> StoredOutput:
    """Pooled vectors, and what ``modules`` make of them."""
    output_layers = read_layers(modules, open_file, "sentence_embedding")
    layers = output_layers.layers
    normalize = bool(layers) and layers[-1] == UnitLength()
    layers = layers[:-1] if normalize else layers
    prompts, default = _prompts(files)
    transformer = JsonSettings.parse(files.get(TRANSFORMER_CONFIG), TRANSFORMER_CONFIG)
    settings = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    dimensions = settings.get_optional("truncate_dim", int)
    if dimensions is not None and normalize:  # they cut the normalized vector, and do not normalize it again
        layers, normalize = (*layers, UnitLength()), False
    head = PooledVector(
        modes,
        normalize,
        layers,
        dimensions,
        prompts,
        default,
        lower_case=transformer.get_optional("do_lower_case", bool) or False,
    )
    return StoredOutput(head, output_layers.folders[: len(layers)])


def _prompts(files: Mapping[str, bytes]) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Prompts by name, and the name of the one that is put before every text."""
    settings = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    default = settings.get_optional("default_prompt_name", str)
    prompts = prompts_of(settings)
    return tuple((name, prompt) for name, prompt in prompts.items() if prompt), (
        default if default is not None and prompts.get(default) else None
    )


def write_output(
    head: CheckpointOutput, spec: EncoderSpec, max_tokens: int | None, source_files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The files that define an output, except weights; ``source_files`` are the files as they were read."""
    files, name = _written(head, spec, max_tokens, source_files), TRANSFORMER_CONFIG
    lower = JsonSettings.parse(source_files.get(name), name).get_optional("do_lower_case", bool)
    if lower and name in files:
        files[name] = to_json({**JsonSettings.parse(files[name], name).values, "do_lower_case": True})
    return files


def _written(
    head: CheckpointOutput, spec: EncoderSpec, max_tokens: int | None, source_files: Mapping[str, bytes]
) -> dict[str, bytes]:
    if isinstance(head, MultiVector):
        return write_multi_vector(head, spec.state_width, max_tokens)
    if isinstance(head, SparseVector):
        return write_sparse(head, max_tokens, spec.embedding.vocabulary)
    if isinstance(head, PairScore):
        return write_pair(head, spec.state_width, max_tokens, source_files)
    if isinstance(head, PooledVector):
        return write_head(head, spec.state_width, max_tokens, source_files, static=not spec.layers)
    return {}


def write_head(
    head: PooledVector,
    width: int,
    max_tokens: int | None,
    source_files: Mapping[str, bytes] | None = None,
    *,
    static: bool = False,
) -> dict[str, bytes]:
    """The files that define the embedding for old and new versions of `sentence-transformers`.

    Args:
        head: the definition.
        width: the encoder's.
        max_tokens: the most tokens of a text; None if there is no limit.
        source_files: the files as they were read, of which other keys are kept.
        static: whether the encoder has no layers; its module is the table and the mean at once.
    """
    after = (*head.projections, UnitLength()) if head.normalize else head.projections
    pooling = write_pooling(head.pooling, width, pools_prompt=head.pools_prompt)
    modules: list[ModuleFile] = [("Transformer", "", None), ("Pooling", "1_Pooling", pooling)]
    if static:
        modules = [(STATIC_MODULE, "", None)]
    modules += layer_files(after, len(modules), width * len(head.pooling), "sentence_embedding")
    files = module_files(modules, "sentence_transformers.models.{}".format)
    if max_tokens is not None or head.lower_case:
        limit = {} if max_tokens is None else {"max_seq_length": max_tokens}
        files[TRANSFORMER_CONFIG] = limit | {"do_lower_case": head.lower_case}
    if head.prompts or head.default_prompt or head.dimensions is not None:
        name = ST_CONFIG
        settings = dict(JsonSettings.parse((source_files or {}).get(name), name).values)
        prompts = {**(settings.get("prompts") or {}), **dict(head.prompts)}
        settings |= {"prompts": prompts, "default_prompt_name": head.default_prompt}
        if head.dimensions is not None:
            settings["truncate_dim"] = head.dimensions
        files[name] = settings
    return {name: to_json(value) for name, value in files.items()}


@dataclass(frozen=True, eq=False)
class TokenLayers:
    """Layers on each token's last hidden state, beside the pooling of a text: BGE-M3's."""

    word_D: NDArray[np.float32]
    """The weight of a token as a word is the part above 0 of its product with this, plus ``word_bias``."""
    word_bias: float
    token_ED: NDArray[np.float32]
    """Makes a token's vector, of width E, before it is normalized."""
    token_bias_E: NDArray[np.float32]


def token_layer_files(folder: Path) -> tuple[Path, ...]:
    """The files of `TokenLayers` that a folder has."""
    files = (folder / f"{name}.safetensors" for name in (WORD_LAYER, TOKEN_LAYER))
    return tuple(file for file in files if file.exists())


def pickled_token_layers(folder: Path) -> tuple[Path, ...]:
    """The same, as they are published: pickled."""
    files = (folder / f"{name}.pt" for name in (WORD_LAYER, TOKEN_LAYER))
    return tuple(file for file in files if file.exists())


def read_token_layers(folder: Path, width: int, name: str) -> TokenLayers:
    """The layers of words and tokens of a folder, for an encoder of that width; ``name`` is the model's.

    Raises:
        InvalidRequest: it has none.
        UnsafeCheckpoint: they are pickled.
        CorruptCheckpoint: a file is damaged, or its tensors have other shapes.
    """
    layers = []
    for layer in (WORD_LAYER, TOKEN_LAYER):
        path = folder / f"{layer}.safetensors"
        if path.exists():
            layers.append(_layer(path, width))
        elif path.with_suffix(".pt").exists():
            raise UnsafeCheckpoint(
                f"{path.with_suffix('.pt')} is pickled, which can run code when opened; make a safe copy "
                f"with: unmask convert {folder} NEW_FOLDER"
            )
        else:
            raise InvalidRequest(
                f"{name} has no {path.name} beside its encoder, so it does not give all three outputs; use "
                "BGE-M3, or embed, sparse_vectors or multi_vectors, as the checkpoint allows"
            )
    (word_1D, bias_1), (token_ED, bias_E) = layers
    if len(word_1D) != 1:
        raise CorruptCheckpoint(f"{WORD_LAYER}.safetensors gives {len(word_1D)} numbers for a token, not one")
    return TokenLayers(word_1D[0], float(bias_1[0]), token_ED, bias_E)


def _layer(path: Path, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The matrix and the bias of a linear layer."""
    shapes = {name: tensor.shape for name, tensor in tensors_of_file(path).items()}
    rows = shapes.get("weight", (0,))[0]
    if not rows or shapes != {"weight": (rows, width), "bias": (rows,)}:
        raise CorruptCheckpoint(f"{path} does not hold a weight and a bias of a layer on states {width} wide")
    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(path).items()}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise CorruptCheckpoint(f"the tensor {name} in {path} holds a number that is not finite")
    return tensors["weight"], tensors["bias"]
