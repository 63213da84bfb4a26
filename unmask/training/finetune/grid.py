"""The grid of a sweep: every combination of the values of some keys of a run file, as settings of its own."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from unmask.errors import InvalidRequest
from unmask.training.table import read_table

Settings = TypeVar("Settings")
"""The settings of a run, a dataclass."""

Value = str | int | float | bool
"""What a key of a grid can be set to; a trial is stored with such values only."""

Grid = Mapping[str, tuple[Value, ...]]
"""Dotted keys of a run file with the values to try."""

MOST_TRIALS = 1000

FREE = frozenset(
    {
        "checkpoints",
        "log",
        "device",
        "out",
        "card",
        "license",
        "language",
        "export_dtype",
        "export_shard_bytes",
        "adapter.dtype",
        "faults",
    }
)
"""Settings that may be changed when a run resumes. Evaluations decide which weights are exported, so they may
not."""

FIXED: Mapping[str, str] = {
    "name": "it names the model",
    "task": "figures of different tasks cannot be compared",
    "data.dev": "figures on different data cannot be compared",
    "evaluation.metric": "it decides between the trials",
    "seed": "seeds are not chosen; give seeds, and every trial is repeated with each",
    "seeds": "every trial has all of them",
    "sweep": "a sweep has no sweeps",
    **dict.fromkeys(FREE, "it does not change what is learned"),
}
"""Keys that no trial may change, and why."""

INSTEAD: Mapping[str, str] = {
    "schedule.warmup_steps": "schedule.warmup_share",
    "schedule.warmup_share": "schedule.warmup_steps",
    "schedule.decay_steps": "schedule.decay_share",
    "schedule.decay_share": "schedule.decay_steps",
}
"""A key that is set replaces the other way of saying the same."""


def checked_grid(settings: Any, sweep: Mapping[str, Any], metric: str | None) -> Grid:
    """The grid of a run file with dotted keys. Every combination is a valid run.

    Args:
        settings: of the run.
        sweep: its lists of values.
        metric: its figure that decides.

    Raises:
        InvalidRequest: a key or a value cannot be set, or there is no metric to compare trials by.
    """
    if metric is None:
        raise InvalidRequest(
            "sweep needs evaluation.metric, which decides between the trials; name a figure on data.dev, "
            "such as accuracy"
        )
    grid = {key: _values(key, value) for key, value in _flat(sweep, "")}
    for key in grid:
        for fixed, reason in FIXED.items():
            if key == fixed or key.startswith(f"{fixed}."):
                raise InvalidRequest(f"sweep cannot vary {key}, because {reason}; leave it out")
        if INSTEAD.get(key) in grid:
            raise InvalidRequest(f"sweep has both {key} and {INSTEAD[key]}, which exclude each other")
    trials = math.prod(map(len, grid.values()))
    if trials > MOST_TRIALS:
        raise InvalidRequest(
            f"sweep has {trials:,} combinations and the limit is {MOST_TRIALS:,}; give fewer values"
        )
    for key, values in grid.items():
        for value in values:
            with_values(settings, {key: value})
    for point in itertools.product(*grid.values()):
        with_values(settings, dict(zip(grid, point, strict=True)))
    return grid


def with_values(settings: Settings, values: Mapping[str, Value]) -> Settings:
    """The settings of one trial: those of the run file with other values under some dotted keys.

    Raises:
        InvalidRequest: there is no such key, or it cannot have that value; the message names both.
    """
    plain: Any = settings
    table = {**dataclasses.asdict(plain), "sweep": {}}
    try:
        for key, value in values.items():
            _set(table, key, value)
            if key in INSTEAD:
                _set(table, INSTEAD[key], None)
        return read_table(type(settings), table, "")
    except InvalidRequest as error:
        what = " and ".join(f"{key} to {value!r}" for key, value in values.items())
        raise InvalidRequest(f"sweep cannot set {what}: {error}") from None


def _set(table: dict[str, Any], key: str, value: Value | None) -> None:
    *path, last = key.split(".")
    for name in path:
        if table.get(name) is None:
            table[name] = {}
        table = table[name]
        if not isinstance(table, dict):
            raise InvalidRequest(f"{name} is not a table")
    table[last] = value


def _flat(value: object, key: str) -> list[tuple[str, object]]:
    """Dotted keys with their values; TOML makes nested tables of keys that have dots and no quotes."""
    if not isinstance(value, Mapping):
        return [(key, value)]
    lines = [line for name, entry in value.items() for line in _flat(entry, f"{key}.{name}" if key else name)]
    names = [name for name, _ in lines]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"sweep has {name} twice; give all of its values in one list")
    return lines


def _values(key: str, values: object) -> tuple[Value, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InvalidRequest(f"sweep has {values!r} for {key}; give a list of values")
    for value in values:
        if not isinstance(value, Value):
            raise InvalidRequest(
                f"sweep has {value!r} among the values of {key}; give strings, numbers, true or false"
            )
    if any(value == other for value, other in itertools.combinations(values, 2)):
        raise InvalidRequest(f"sweep has a value of {key} twice, in {list(values)}; give each once")
    return tuple(values)
