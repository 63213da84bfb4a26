"""The heads that a config.json declares by the class in its ``architectures``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.families import Family, family_of
from unmask.families.family import CLASSES, Shapes
from unmask.spec import ROLES, EncoderSpec, role_of
from unmask.spec.tensor_map import Concat, Rename, Reorder, Stacked


def spec_of_class(family: Family, config: JsonSettings) -> EncoderSpec:
    """The encoder with the heads of the class that ``architectures`` names."""
    base = family.read(config, "published")
    by_class: dict[str, list[_Choice]] = {}
    for choice in _choices(family, base, config):
        by_class.setdefault(str(choice.written["architectures"][0]), []).append(choice)
    architectures = config.values.get("architectures")
    if architectures is None and len(by_class) == 1:
        architectures = list(by_class)
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in by_class:
        raise UnknownArchitecture(
            f"the config says architectures is {architectures!r}; of the family {family.name} it can be a "
            f"list with one of {', '.join(by_class)}"
        )
    # Two kinds of head may share one class; another key distinguishes them (DeBERTa's legacy).
    chosen = min(
        by_class[architectures[0]],
        key=lambda choice: sum(
            config.values.get(key, value) != value for key, value in choice.written.items()
        ),
    )
    return family.detect_heads(base, chosen.shapes, config)


def with_heads(config: Mapping[str, Any], roles: frozenset[str]) -> dict[str, Any]:
    """The config with a class that has heads of these roles: its own class, else the family's smallest.

    Raises:
        InvalidRequest: no class of the family has them.
        CheckpointError: the config cannot be read.
    """
    settings, family = JsonSettings("the config", dict(config)), family_of(config)
    fitting = [
        choice
        for choice in _choices(family, family.read(settings, "published"), settings)
        if roles <= choice.roles
    ]
    if not fitting:
        raise InvalidRequest(
            f"the objective trains heads of the roles {', '.join(sorted(roles))}, and the family "
            f"{family.name} has no class with them; choose another objective, or another model_type"
        )
    if any(choice.written["architectures"] == config.get("architectures") for choice in fitting):
        return dict(config)
    smallest = min(fitting, key=lambda choice: len(choice.roles))
    return {**config, "architectures": smallest.written["architectures"]}


@dataclass(frozen=True)
class _Choice:
    """One set of heads on an encoder."""

    roles: frozenset[str]
    """Roles of the heads; an MLM head is always ``masked`` here."""
    shapes: Shapes
    """The shapes by which `Family.detect_heads` detects them."""
    written: Mapping[str, Any]
    """The config.json of the encoder with them."""


def _choices(family: Family, base: EncoderSpec, config: JsonSettings) -> Iterator[_Choice]:
    """Every set of heads for which the family has a class and tensor names."""
    own_roles = {row.ours.split(".")[1] for row in _named(family) if row.ours.startswith("heads.")}
    pooler = {f"{name}.weight": (base.width, base.width) for name in _theirs(family, "pooler.dense")}
    positions, position_shapes = base.embedding.positions, {}
    if positions is not None and not positions.added:
        position_shapes = {
            f"{name}.weight": (positions.rows, base.embedding.width)
            for name in _theirs(family, "embedding.positions")
        }
    for roles, suffix in CLASSES.items():
        # A position table that the embedding does not add is for the enhanced mask decoder.
        if not roles <= own_roles or (position_shapes and "masked" in roles):
            continue
        class_config = JsonSettings(config.name, {**config.values, "architectures": [suffix]})
        heads = {name: shape for role in roles for name, shape in _head_shapes(family, base, role, config)}
        shapes: dict[str, tuple[int, ...]] = position_shapes | heads
        spec = family.detect_heads(base, shapes | pooler, class_config)
        pooled = any(getattr(head, "reads", None) == "pooler" for head in spec.heads)
        if pooled or (base.pooler is not None and not roles):
            shapes |= pooler
        else:
            spec = family.detect_heads(base, shapes, class_config)
        if base.heads or frozenset(map(role_of, spec.heads)) == roles:
            there = frozenset(_plainly(role_of(head)) for head in spec.heads)
            yield _Choice(there, shapes, family.write(spec))


def _plainly(role: str) -> str:
    return "masked" if role == "enhanced" else role


def _named(family: Family) -> Iterator[Rename | Concat | Reorder | Stacked]:
    return (row for row in family.tensor_map if isinstance(row, Rename | Concat | Reorder | Stacked))


def _theirs(family: Family, ours: str) -> Iterator[str]:
    for row in _named(family):
        if row.ours == ours:
            yield from row.theirs if isinstance(row, Concat) else (row.theirs,)


def _head_shapes(
    family: Family, base: EncoderSpec, role: str, config: JsonSettings
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes by which `Family.detect_heads` detects a head, by the length of their first axis."""
    predicts = role in ("masked", "enhanced")
    labels = config.values.get("id2label")
    sizes = {
        "transform.dense": base.embedding.width if predicts else base.width,
        **({"transform.outer": base.width} if predicts else {}),
        "decoder": base.embedding.vocabulary,
        "out": ROLES[role].classes or (len(labels) if isinstance(labels, dict) else 2),
    }
    for row in _named(family):
        place = row.ours.removeprefix(f"heads.{role}.")
        if place in sizes and place != row.ours:
            for theirs in _theirs(family, row.ours):
                yield f"{theirs}.weight", (sizes[place],)
                yield f"{theirs}.bias", (sizes[place],)
