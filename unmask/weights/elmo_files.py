"""ELMo on disk: a folder of our own in safetensors, and the options.json and weights.hdf5 of the authors.

Axes: G gates of an LSTM, times its cells.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.base.checksums import check_files, write_checksums
from unmask.base.files import check_regular, read_regular, whole_folder
from unmask.base.json_settings import JsonSettings
from unmask.base.optional import require
from unmask.encoder.elmo import Elmo, LayerMix
from unmask.encoder.encoder import is_finite
from unmask.errors import CorruptCheckpoint, OutputError, TensorMismatch, UnknownArchitecture
from unmask.spec.elmo import CONFIG, MODEL_TYPE, ElmoSpec

WEIGHTS = "model.safetensors"

Array = NDArray[np.float32]


def save_elmo(elmo: Elmo, folder: str | Path) -> None:
    """Write config.json, model.safetensors and their checksums; the folder appears complete or not at all.

    Raises:
        OutputError: the folder exists and is not empty, or cannot be written.
    """
    config = json.dumps({"model_type": MODEL_TYPE, **asdict(elmo.spec)}, indent=2, sort_keys=True) + "\n"
    tensors = {name: tensor.contiguous() for name, tensor in elmo.state_dict().items()}
    with whole_folder(Path(folder)) as partial_folder:
        (partial_folder / CONFIG).write_text(config, encoding="utf-8", newline="\n")
        try:
            save_file(tensors, partial_folder / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"cannot write {Path(folder) / WEIGHTS}: {error}") from None
        write_checksums(partial_folder)


def load_elmo(folder: str | Path, *, verify: bool | None = None) -> Elmo:
    """Load what `save_elmo` wrote, in evaluation mode.

    Args:
        folder: a folder.
        verify: whether to compare the contents of files with the checksums, see `check_files`.

    Raises:
        CheckpointError: what is wrong with the folder, in one sentence.
    """
    folder = Path(folder)
    check_files(folder, verify)
    spec = read_spec(folder)
    check_regular(folder / WEIGHTS, CorruptCheckpoint)
    try:
        state = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(f"{folder / WEIGHTS} is damaged or incomplete: {error}") from None
    return filled(spec, state, WEIGHTS)


def read_spec(folder: Path) -> ElmoSpec:
    """The spec of what `save_elmo` wrote.

    Raises:
        CheckpointError: what is wrong with config.json, in one sentence.
    """
    config = JsonSettings.parse(read_regular(folder / CONFIG, CorruptCheckpoint), CONFIG)
    config.require_one_of("model_type", MODEL_TYPE)
    config.require_one_of("activation", "relu", "tanh")
    defaults = asdict(ElmoSpec())
    values = {
        field.name: config.get(field.name, defaults[field.name])
        for field in fields(ElmoSpec)
        if field.name != "filters"
    }
    spec = ElmoSpec(**values, filters=filters_of(config, "filters"))
    refuse_unread(config)
    return spec


def read_published_spec(options: Path) -> ElmoSpec:
    """The spec of the authors' options.json.

    Raises:
        CheckpointError: what is wrong with it, in one sentence.
    """
    return published_spec(JsonSettings.parse(read_regular(options, CorruptCheckpoint), options.name))


def read_published_elmo(options: str | Path, weights: str | Path) -> Elmo:
    """Load the authors' two files (Peters et al. 2018), in evaluation mode; the layer mix is the plain mean.

    Raises:
        MissingExtra: h5py is not installed.
        CheckpointError: what is wrong with the files, in one sentence.
    """
    require("elmo")
    import h5py  # type: ignore[import-untyped]

    spec = read_published_spec(Path(options))
    stored: dict[str, Array] = {}

    def collect(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            stored[name] = item[()]

    check_regular(Path(weights), CorruptCheckpoint)
    try:
        with h5py.File(weights, "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise CorruptCheckpoint(f"{weights} cannot be read as HDF5: {error}") from None
    state: dict[str, Tensor] = {}
    for theirs, ours in published_tensors(spec).items():
        if theirs not in stored:
            raise TensorMismatch(f"{weights} has no {theirs}, which options.json asks for")
        try:
            arrays = ours(stored.pop(theirs))
        except ValueError as error:
            raise TensorMismatch(f"{theirs} of {weights} has the wrong shape: {error}") from None
        state |= {name: torch.tensor(array) for name, array in arrays.items()}
    if stored:
        raise TensorMismatch(
            f"{weights} holds {', '.join(sorted(stored)[:3])}, which has no place in an ELMo"
        )
    state |= {f"mix.{name}": tensor for name, tensor in LayerMix(spec.layers + 1).state_dict().items()}
    return filled(spec, state, str(weights))


def published_spec(options: JsonSettings) -> ElmoSpec:
    """The spec from options.json. Keys outside its two sections concern training and change no output."""
    options.require_one_of("bidirectional", True)
    lstm, characters = (section(options, key) for key in ("lstm", "char_cnn"))
    embedding = section(characters, "embedding")
    lstm.require_one_of("use_skip_connections", True)
    characters.require_one_of("activation", "relu", "tanh")
    characters.get("n_characters", 0)  # 261 in training and 262 afterwards, with one row for masking
    spec = ElmoSpec(
        character_width=embedding.get("dim", 16),
        word_characters=characters.get("max_characters_per_token", 50),
        filters=filters_of(characters, "filters"),
        activation=characters.get("activation", "relu"),
        highways=characters.get("n_highway", 0),
        width=lstm.get("projection_dim", 512),
        cell_width=lstm.get("dim", 4096),
        layers=lstm.get("n_layers", 2),
        cell_clip=lstm.get("cell_clip", 3.0),
        state_clip=lstm.get("proj_clip", 3.0),
    )
    for part in (lstm, characters, embedding):
        refuse_unread(part)
    return spec


def published_tensors(spec: ElmoSpec) -> Mapping[str, Callable[[Array], Mapping[str, Array]]]:
    """For each tensor of weights.hdf5, how it becomes one or more of ours. Theirs multiply on the right."""
    table: dict[str, Callable[[Array], Mapping[str, Array]]] = {
        "char_embed": partial(plain, "words.characters.weight"),
        "CNN_proj/W_proj": partial(transposed, "words.projection.weight"),
        "CNN_proj/b_proj": partial(plain, "words.projection.bias"),
    }
    for number in range(len(spec.filters)):
        table[f"CNN/W_cnn_{number}"] = partial(convolution, f"words.filters.{number}.weight")
        table[f"CNN/b_cnn_{number}"] = partial(plain, f"words.filters.{number}.bias")
    for number in range(spec.highways):
        for theirs, ours in (("transform", "transform"), ("carry", "gate")):
            at = f"words.highways.{number}.{ours}"
            table[f"CNN_high_{number}/W_{theirs}"] = partial(transposed, f"{at}.weight")
            table[f"CNN_high_{number}/b_{theirs}"] = partial(plain, f"{at}.bias")
    for direction, name in enumerate(("ahead", "back")):
        for layer in range(spec.layers):
            theirs = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            at = f"recurrent.{name}.{layer}"
            table[f"{theirs}/W_0"] = partial(gate_matrices, at, spec.width)
            table[f"{theirs}/B"] = partial(gate_biases, at)
            table[f"{theirs}/W_P_0"] = partial(transposed, f"{at}.projection.weight")
    return table


def plain(name: str, theirs: Array) -> Mapping[str, Array]:
    """The tensor unchanged."""
    return {name: theirs}


def transposed(name: str, theirs: Array) -> Mapping[str, Array]:
    """(in, out) to (out, in)."""
    rows, columns = theirs.shape
    return {name: theirs.reshape(rows, columns).T.copy()}


def convolution(name: str, theirs: Array) -> Mapping[str, Array]:
    """(1, width, in, out) to (out, in, width)."""
    _, width, inner, outer = theirs.shape
    return {name: theirs.reshape(width, inner, outer).transpose(2, 1, 0).copy()}


def gate_matrices(at: str, width: int, theirs: Array) -> Mapping[str, Array]:
    """Input above state, gates in the order input, new content, forget, output."""
    rows_GD = forget_before_new(theirs.T)
    return {f"{at}.inputs.weight": rows_GD[:, :width].copy(), f"{at}.state.weight": rows_GD[:, width:].copy()}


def gate_biases(at: str, theirs: Array) -> Mapping[str, Array]:
    """The biases, in the same order; ours include the 1 that their code adds to the forget gate."""
    rows_G = forget_before_new(theirs).copy()
    cell_width = len(rows_G) // 4
    rows_G[cell_width : 2 * cell_width] += 1
    return {f"{at}.state.bias": rows_G}


def forget_before_new(theirs: Array) -> Array:
    """Rows of the four gates in our order."""
    admit, new, keep, show = np.split(theirs, 4)
    return np.concatenate([admit, keep, new, show])


def filled(spec: ElmoSpec, state: Mapping[str, Tensor], name: str) -> Elmo:
    """The network with these weights, all present and finite.

    Raises:
        TensorMismatch: a tensor is missing, unexpected or has a different shape.
        CorruptCheckpoint: a tensor contains a non-finite number.
    """
    with torch.device("meta"):
        elmo = Elmo(spec)
    state_dict = elmo.state_dict()
    for ours in sorted(state_dict.keys() ^ state.keys()):
        raise TensorMismatch(
            f"{name} {'lacks' if ours in state_dict else 'holds'} {ours}; its config says otherwise"
        )
    for ours in state_dict:
        if state[ours].shape != state_dict[ours].shape:
            raise TensorMismatch(
                f"{name} gives {ours} the shape {tuple(state[ours].shape)}, "
                f"not {tuple(state_dict[ours].shape)}"
            )
        if not is_finite(state[ours]):
            raise CorruptCheckpoint(f"{name}: the tensor {ours} holds a number that is not finite")
    elmo.load_state_dict(dict(state), assign=True)
    return elmo.eval()


def filters_of(settings: JsonSettings, key: str) -> tuple[tuple[int, int], ...]:
    """Pairs of a width and a count.

    Raises:
        CorruptCheckpoint: the value is something else.
    """
    pairs: list[object] = settings.get(key, [])
    filters = []
    for pair in pairs:
        if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
            raise settings.wrong(key, list)
        filters.append((pair[0], pair[1]))
    return tuple(filters)


def section(settings: JsonSettings, key: str) -> JsonSettings:
    """The settings under one key."""
    return JsonSettings(f"{settings.name}, {key}", settings.get(key, {}))


def refuse_unread(settings: JsonSettings) -> None:
    """Raise `UnknownArchitecture` if there is a key that was never read."""
    for key in sorted(settings.unread()):
        raise UnknownArchitecture(f"{settings.name} says {key}, which is not built")
