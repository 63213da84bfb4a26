"""Longformer (Beltagy, Peters & Cohan 2020): RoBERTa with a window in each layer and global tokens.

The task determines the global tokens of each batch: see `unmask.spec.global_tokens`.

``attention_window`` in config.json is the total window: a token attends to half of it on each side.
The authors' code reads ``attention_dilation``, and `transformers` does not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.families.common import LARGE
from unmask.families.family import Family, Release
from unmask.families.roberta import HEADS, RELEASED
from unmask.families.roberta import KEYS as ROBERTA_KEYS
from unmask.families.roberta import ROWS as ROBERTA_ROWS
from unmask.families.roberta import spec as roberta_spec
from unmask.spec import EncoderSpec, SlidingWindow, SlidingWindowGlobal, SoftmaxAttention
from unmask.spec.check import require_size
from unmask.spec.config_keys import Arguments, Compat, KeyGroup, in_range, only, softmax_of
from unmask.spec.tensor_map import Concat


def _read_windows(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    windows = _per_layer(config, "attention_window", 512, arguments["layers"])
    dilations = _per_layer(config, "attention_dilation", 1, arguments["layers"])
    for whole in windows:
        if whole % 2 or whole < 1:
            raise UnknownArchitecture(f"{config.name} says attention_window is {whole}; it must be even")
    if compat == "hf":
        dilations = [1] * len(windows)
    return {"windows": [SlidingWindow(whole // 2, d) for whole, d in zip(windows, dilations, strict=True)]}


def _per_layer(config: JsonSettings, key: str, default: int, layers: int) -> list[int]:
    """One number per layer, or one for all layers."""
    if isinstance(config.values.get(key), list):
        numbers = config.get(key, [default])
        if any(type(number) is not int for number in numbers):
            raise config.wrong(key, int)
        if len(numbers) != layers:
            raise CorruptCheckpoint(
                f"{config.name} gives {key} for {len(numbers)} layers, and there are {layers}"
            )
    else:
        numbers = [config.get(key, default)] * layers
    if key == "attention_dilation":
        for number in numbers:
            in_range(config, key, number, require_size)
    return numbers


def _write_windows(encoder: EncoderSpec) -> Mapping[str, Any]:
    windows = []
    for layer in encoder.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        assert isinstance(layer.mixer.pattern, SlidingWindowGlobal)
        windows.append(layer.mixer.pattern.window)
    keys = {"attention_window": [2 * window.radius for window in windows]}
    if any(window.dilation > 1 for window in windows):
        keys["attention_dilation"] = [window.dilation for window in windows]
    return keys


KEYS = (
    only("attention_mode", "longformer"),
    only("autoregressive", False),
    only("ignore_attention_mask", False),
    *ROBERTA_KEYS,
    KeyGroup(_read_windows, _write_windows),
)

_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    *ROBERTA_ROWS,
    Concat(
        (_SELF + "query_global", _SELF + "key_global", _SELF + "value_global"),
        "layers.{l}.attention.globals.qkv",
    ),
)


def spec(*, windows: list[SlidingWindow], **roberta: Any) -> EncoderSpec:
    """A RoBERTa whose layers attend to these windows and the global tokens."""
    encoder = roberta_spec(**roberta)
    mixers = (replace(softmax_of(encoder), pattern=SlidingWindowGlobal(window)) for window in windows)
    return replace(encoder, layers=tuple(replace(encoder.layers[0], mixer=mixer) for mixer in mixers))


PUBLISHED = (
    Release("allenai/longformer-base-4096"),
    Release("allenai/longformer-large-4096", LARGE),
)

LONGFORMER = Family(
    name="longformer",
    model_types=("longformer",),
    stem="Longformer",
    paper="Beltagy, Peters & Cohan 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="longformer.",
    heads=HEADS,
    releases=PUBLISHED,
    released=RELEASED | {"max_position_embeddings": 4098},
    hf_difference="windows are not dilated, regardless of attention_dilation",
)
