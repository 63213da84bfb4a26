"""Longformer (Beltagy, Peters & Cohan 2020): RoBERTa with a window a layer and global tokens.

Which tokens are global is said with each batch, by the task: see `unmask.model.spec.global_tokens`.

``attention_window`` in config.json is the whole window: a token sees half of it on each side, and itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.model.families.family import Compat, Family, Published
from unmask.model.families.roberta import ROWS as ROBERTA_ROWS
from unmask.model.families.roberta import adapt, pretraining
from unmask.model.families.roberta import read as read_roberta
from unmask.model.families.roberta import spec as roberta_spec
from unmask.model.families.roberta import write as write_roberta
from unmask.model.spec import EncoderSpec, SoftmaxAttention, Window, WindowAndGlobals
from unmask.model.spec.rows import Concat
from unmask.settings import Settings


def with_windows(encoder: EncoderSpec, windows: list[Window]) -> EncoderSpec:
    """A RoBERTa whose layers see these windows and the global tokens."""
    layers = []
    for layer, window in zip(encoder.layers, windows, strict=True):
        assert isinstance(layer.mixer, SoftmaxAttention)
        layers.append(replace(layer, mixer=replace(layer.mixer, reach=WindowAndGlobals(window))))
    return replace(encoder, layers=tuple(layers))


def spec(*, layers: int, width: int, heads: int, feedforward: int, positions: int = 4098) -> EncoderSpec:
    """A Longformer of the given sizes, each token seeing 256 others on each side."""
    encoder = roberta_spec(layers=layers, width=width, heads=heads, feedforward=feedforward)
    moved = encoder.embedding.positions
    assert moved is not None
    longer = replace(encoder.embedding, positions=replace(moved, rows=positions))
    return with_windows(replace(encoder, embedding=longer), [Window(256)] * layers)


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes: RoBERTa's keys, and a window for each layer.

    The authors' code reads ``attention_dilation``, and `transformers` does not.
    """
    config.require("attention_mode", "longformer")
    config.require("autoregressive", False)
    config.require("ignore_attention_mask", False)
    encoder = read_roberta(config, compat)
    windows = _per_layer(config, "attention_window", 512, len(encoder.layers))
    dilations = _per_layer(config, "attention_dilation", 1, len(encoder.layers))
    for whole in windows:
        if whole % 2 or whole < 1:
            raise UnknownArchitecture(f"{config.name} says attention_window is {whole}; it must be even")
    if compat == "hf":
        dilations = [1] * len(encoder.layers)
    return with_windows(
        encoder, [Window(whole // 2, dilation) for whole, dilation in zip(windows, dilations, strict=True)]
    )


def _per_layer(config: Settings, key: str, default: int, layers: int) -> list[int]:
    """A number for each layer, or one for all of them."""
    if not isinstance(config.values.get(key), list):
        return [config.take(key, default)] * layers
    found = config.take(key, [default])
    if any(type(one) is not int for one in found):
        raise config.wrong(key, int)
    if len(found) != layers:
        raise CorruptCheckpoint(f"{config.name} gives {key} for {len(found)} layers, and there are {layers}")
    return found


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    windows = []
    for layer in encoder.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        assert isinstance(layer.mixer.reach, WindowAndGlobals)
        windows.append(layer.mixer.reach.window)
    keys = {
        **write_roberta("longformer", "Longformer", encoder),
        "attention_window": [2 * window.radius for window in windows],
    }
    if any(window.dilation > 1 for window in windows):
        keys["attention_dilation"] = [window.dilation for window in windows]
    return keys


_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    *ROBERTA_ROWS,
    Concat(
        (_SELF + "query_global", _SELF + "key_global", _SELF + "value_global"),
        "layers.{l}.attention.globals.qkv",
    ),
)

_BELTAGY = "Beltagy, Peters & Cohan 2020"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)


def _published(name: str, encoder: EncoderSpec) -> Published:
    return Published(name, encoder, "Apache-2.0", _BELTAGY, pretraining(encoder))


LONGFORMER = Family(
    name="longformer",
    model_types=("longformer",),
    paper=_BELTAGY,
    read=read,
    adapt=adapt,
    write=write,
    prefix="longformer.",
    rows=ROWS,
    published=(
        _published("allenai/longformer-base-4096", BASE),
        _published("allenai/longformer-large-4096", LARGE),
    ),
    differs="windows are not dilated, whatever attention_dilation says",
)
