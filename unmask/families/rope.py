"""Read and write rotary positions in config.json."""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.spec import EncoderSpec, Rotary
from unmask.spec.check import require_positive
from unmask.spec.config_keys import in_range, softmax_of


def read_rope(values: Mapping[str, Any], theta: float, name: str = "rope_parameters") -> Rotary:
    """The rotary positions in an object such as ``rope_parameters``; ``theta`` is the default.

    The only supported scaling is ``linear``, which divides positions by ``factor``.

    Raises:
        UnknownArchitecture: it has another scaling, or rotates only some features of a head.
    """
    settings = JsonSettings(f"config.json's {name}", values)
    kind = "rope_type" if "rope_type" in values else "type"
    settings.require_one_of(kind, "default", "linear")
    settings.require_one_of("partial_rotary_factor", 1.0, None)
    factor = settings.get("factor", 1.0) if values.get(kind) == "linear" else 1.0
    theta = settings.get("rope_theta", theta)
    in_range(settings, "rope_theta", theta, require_positive)
    in_range(settings, "factor", factor, require_positive)
    return Rotary(theta, scale=factor)


def write_rope(rotary: Rotary) -> dict[str, Any]:
    """The object that `read_rope` reads."""
    if rotary.scale == 1.0:
        return {"rope_theta": rotary.theta, "rope_type": "default"}
    return {"factor": rotary.scale, "rope_theta": rotary.theta, "rope_type": "linear"}


def rotary_of(encoder: EncoderSpec) -> Rotary:
    """The rotary positions of layer 0."""
    position = softmax_of(encoder).position
    assert isinstance(position, Rotary)
    return position
