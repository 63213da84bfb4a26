"""Check that an encoder to be trained can be saved, and in which family's layout."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch, UnmaskError
from unmask.families import Family, family_of
from unmask.families.family import Shapes
from unmask.families.native import NATIVE
from unmask.spec import EncoderSpec
from unmask.weights.build import on_meta
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.tensor_report import moves

NAMED = 3
"""Differences between specs that an error names at most."""


def check_written(family: Family, spec: EncoderSpec, config: Mapping[str, Any]) -> None:
    """Refuse an encoder that a family's files cannot represent exactly.

    Args:
        family: the family in whose layout it is to be saved.
        spec: the spec of the encoder.
        config: keys of config.json that are saved in addition to those of `Family.write`.

    Raises:
        InvalidRequest: the family has no name for one of its tensors or settings, or it cannot be built.
        CheckpointError: the files that would be written cannot be read.
    """
    try:
        state = on_meta(spec).state_dict()
    except (RuntimeError, ValueError) as error:
        raise InvalidRequest(f"an encoder of these sizes cannot be built: {error}") from None
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        tensor_moves = moves(family.tensor_map_of(spec), state, partial(family.layer_name, spec))
    except TensorMismatch as error:
        raise InvalidRequest(
            f"an encoder of the family {family.name} cannot be saved with these heads: {error}"
        ) from None
    for move in tensor_moves:
        first, *rest = state[move.ours].shape or (1,)
        shapes |= dict.fromkeys(move.theirs, (first // len(move.theirs), *rest))
    back = _read_back(family, {**config, **family.write(spec)}, shapes)
    if back != spec:
        written, reread = dict(family.write(spec)), dict(family.write(back))
        keys = [key for key in sorted(written | reread) if written.get(key) != reread.get(key)]
        raise InvalidRequest(
            f"the family {family.name} cannot save this encoder so that it loads as the same one: "
            f"{'; '.join(differences(spec, back)[:NAMED])}; change "
            f"{' and '.join(keys) if keys else 'the keys of the config that decide this'}"
        )


def differences(mine: object, other: object, name: str = "") -> list[str]:
    """Where two specs differ, as ``layers[0].mixer.heads is 4 and would be read as 2``."""
    if type(mine) is type(other):
        if is_dataclass(mine):
            parts = [(f"{name}.{field.name}" if name else field.name, field.name) for field in fields(mine)]
            values = [
                (getattr(mine, attribute), getattr(other, attribute), path) for path, attribute in parts
            ]
            return [text for value in values for text in differences(*value)]
        if isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
            values = [(*pair, f"{name}[{place}]") for place, pair in enumerate(zip(mine, other, strict=True))]
            return [text for value in values for text in differences(*value)]
    return [] if mine == other else [f"{name} is {mine!r} and would be read as {other!r}"]


def _read_back(family: Family, config: Mapping[str, Any], shapes: Shapes) -> EncoderSpec:
    settings = JsonSettings("the config as it is written", config)
    if family_of(config) is not family:
        raise CorruptCheckpoint(f"{settings.name} is of another family than {family.name}")
    return family.detect_heads(family.read(settings, "published"), shapes, settings)


def written_as(checkpoint: Checkpoint, spec: EncoderSpec) -> Checkpoint:
    """The checkpoint in whose layout to save an encoder derived from that of ``checkpoint``.

    This is ``checkpoint`` if its family can write the encoder, else one in unmask's own format, which
    `transformers` cannot read.
    """
    try:
        check_written(checkpoint.family, spec, checkpoint.config)
    except UnmaskError:
        return replace(checkpoint, family=NATIVE, config={}, spec=spec)
    return checkpoint
