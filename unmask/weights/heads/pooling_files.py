"""Read and write 1_Pooling/config.json. Free of torch."""

from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import quoted
from unmask.spec import POOLING, PoolingMode
from unmask.weights.heads.sentence_modules import NotKnown

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
