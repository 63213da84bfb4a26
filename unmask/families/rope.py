"""Read and write rotary positions in config.json."""

import math
from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families.common import SLIDING, WHOLE, Kind
from unmask.spec import EncoderSpec, Rotary, SlidingWindow, SoftmaxAttention, Yarn
from unmask.spec.check import require_positive, require_size
from unmask.spec.config_keys import in_range, softmax_of


def read_rope(values: Mapping[str, Any], theta: float, name: str = "rope_parameters") -> Rotary:
    """The rotary positions in an object such as ``rope_parameters``; ``theta`` is the default.

    The supported scalings are ``linear``, which divides positions by ``factor``, and ``yarn``.

    Raises:
        UnknownArchitecture: it has another scaling, or rotates only some features of a head.
    """
    settings = JsonSettings(f"config.json's {name}", values)
    kind = "rope_type" if "rope_type" in values else "type"
    settings.require_one_of(kind, "default", "linear", "yarn")
    settings.require_one_of("partial_rotary_factor", 1.0, None)
    factor = settings.get("factor", 1.0) if values.get(kind) in ("linear", "yarn") else 1.0
    theta = settings.get("rope_theta", theta)
    in_range(settings, "rope_theta", theta, require_positive)
    in_range(settings, "factor", factor, require_positive)
    if values.get(kind) == "yarn":
        return Rotary(theta, yarn=_read_yarn(settings, factor))
    return Rotary(theta, scale=factor)


def _read_yarn(settings: JsonSettings, factor: float) -> Yarn:
    trained = settings.get_optional("original_max_position_embeddings", int)
    if trained is None:
        raise CorruptCheckpoint(
            f"{settings.name} says rope_type is yarn and does not say original_max_position_embeddings, the "
            "tokens of a text in training; add it"
        )
    in_range(settings, "original_max_position_embeddings", trained, require_size)
    numbers = {
        name: settings.get_optional(name, float)
        for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
    }
    for name, value in numbers.items():
        if value:
            in_range(settings, name, value, require_positive)
    stretch = numbers["attention_factor"]
    above, below = numbers["mscale"], numbers["mscale_all_dim"]
    if stretch is None and above and below and factor > 1:
        # DeepSeek's form: the ratio of two factors, each with a weight of its own.
        stretch = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    return Yarn(
        factor,
        trained,
        fast=numbers["beta_fast"] or Yarn.fast,
        slow=numbers["beta_slow"] or Yarn.slow,
        whole_pairs=settings.get("truncate", True),
        stretch=stretch,
    )


def write_rope(rotary: Rotary) -> dict[str, Any]:
    """The object that `read_rope` reads."""
    yarn = rotary.yarn
    if yarn is not None:
        return {
            "attention_factor": yarn.stretch,
            "beta_fast": yarn.fast,
            "beta_slow": yarn.slow,
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.trained_tokens,
            "rope_theta": rotary.theta,
            "rope_type": "yarn",
            "truncate": yarn.whole_pairs,
        }
    if rotary.scale == 1.0:
        return {"rope_theta": rotary.theta, "rope_type": "default"}
    return {"factor": rotary.scale, "rope_theta": rotary.theta, "rope_type": "linear"}


def read_rope_by_kind(
    config: JsonSettings, old: Mapping[Kind, float], scaling: Mapping[str, Any] | None = None
) -> dict[Kind, Rotary]:
    """Rotary positions by kind of layer, from ``rope_parameters``, an object with an object for each.

    `transformers` 5.23 takes ``truncate`` of YaRN from the outer object there, so it finds none; here the
    object of the kind says it.

    Args:
        config: config.json.
        old: the theta of each kind where the object has none.
        scaling: an older object with the scaling of layers that read the whole text.

    Raises:
        UnknownArchitecture: see `read_rope`; or there is another kind.
    """
    objects = JsonSettings(f"{config.name}'s rope_parameters", config.get("rope_parameters", {}))
    read = {kind: objects.get_optional(kind, dict) or {} for kind in old}
    read[WHOLE] |= scaling or {}
    for key in objects.unread():
        raise UnknownArchitecture(f"{config.name} says rope_parameters of {quoted(key)}, which no layer is")
    return {kind: read_rope(read[kind], old[kind], f"rope_parameters.{kind}") for kind in old}


def write_rope_by_kind(encoder: EncoderSpec, default: Mapping[Kind, float]) -> dict[str, Any]:
    """The key that `read_rope_by_kind` reads; ``default``: thetas of kinds that no layer is."""
    rotary = {kind: Rotary(theta) for kind, theta in default.items()}
    for layer in encoder.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        assert isinstance(layer.mixer.position, Rotary)
        rotary[SLIDING if isinstance(layer.mixer.pattern, SlidingWindow) else WHOLE] = layer.mixer.position
    return {"rope_parameters": {kind: write_rope(rotary[kind]) for kind in default}}


def rotary_of(encoder: EncoderSpec) -> Rotary:
    """The rotary positions of layer 0."""
    position = softmax_of(encoder).position
    assert isinstance(position, Rotary)
    return position
