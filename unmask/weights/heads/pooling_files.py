"""Read and write 1_Pooling/config.json. Free of torch."""

from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import quoted
from unmask.spec import PoolingMode
from unmask.weights.heads.sentence_modules import NotKnown

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
        names = [name for name, flag in FLAGS.items() if config.get(flag, False)]
        names += [key for key in config.unread() if config.values[key] is True and "pooling_mode" in key]
    if not names:
        raise NotKnown(f"{config.name} names no pooling")
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise NotKnown(f"{config.name} asks for the pooling {quoted(name)}, which is not built")
    return tuple(MODES[name] for name in names)


def write_pooling(modes: tuple[PoolingMode, ...], width: int, *, pools_prompt: bool = True) -> dict[str, Any]:
    """1_Pooling/config.json, in the older form if its order is that of ``modes``."""
    names = [name for name, ours in MODES.items() if ours in modes]
    if tuple(MODES[name] for name in names) == modes:
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        pooling |= {flag: name in names for name, flag in FLAGS.items()}
    else:
        back = {ours: name for name, ours in MODES.items()}
        pooling = {"embedding_dimension": width, "pooling_mode": [back[mode] for mode in modes]}
    return pooling if pools_prompt else pooling | {"include_prompt": False}
