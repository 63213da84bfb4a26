"""Protocols of evaluation by fine-tuning, by name: every value that decides a score, in a TOML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import unmask
from unmask.errors import InvalidRequest
from unmask.training.finetune.tasks import Task
from unmask.training.table import read_table, read_toml

_PACKAGE = Path(unmask.__file__).parent
FOLDERS = (_PACKAGE / "shipped" / "protocols", _PACKAGE.parent / "recipes" / "tasks")
"""Where the files are: in an installed package, and in a source checkout."""

Kind = Literal["glue", "squad", "ner"]
"""The folder of a protocol, which is also the command of ``unmask evaluate`` that runs it."""


@dataclass(frozen=True)
class TaskData:
    """A task as its official archive has it: what `ProtocolTask` adds to is read from here."""

    title: str
    """Its name in tables."""
    task: Task
    metrics: Mapping[str, str]
    """The figures that the task reports, by their names in tables."""
    choose: str
    """The figure that chooses in a grid."""
    train: str = ""
    """Its file, relative to the data folder; empty where the user names the files."""
    dev: str = ""
    dev_name: str = ""
    """What tables call the dev part where there are several."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Further dev parts, by name."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a run file's ``[data]``: columns and labels."""


@dataclass(frozen=True)
class ProtocolTask(TaskData):
    """A task of a protocol, with what is its own."""

    seeds: tuple[int, ...] = ()
    """Instead of the protocol's seeds."""
    intermediate: str = ""
    """The task whose fine-tuned model this one starts from."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a run file that differ from the protocol's."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of each key, by its dotted name; every combination is run."""


@dataclass(frozen=True)
class Evaluate:
    """How often to evaluate, where that depends on the number of training texts."""

    per_epoch: int
    """Evaluations per epoch."""
    most_steps: int
    """The most steps between two of them."""


@dataclass(frozen=True)
class Average:
    """The average that a protocol defines."""

    how: str
    """What is averaged in which order, as a sentence."""
    columns: Mapping[str, tuple[str, ...]]
    """The metrics of each task that it is made of, as tables call them without the task."""
    statistic: Literal["mean", "median"] = "mean"
    """Of each metric over seeds."""


@dataclass(frozen=True)
class Protocol:
    """One way to fine-tune and score, such as that of a paper. Its scores are those of dev data."""

    source: str
    """Where its values are published."""
    comparable: tuple[str, ...]
    """The published figures that its scores may be set beside."""
    run: Mapping[str, Any]
    """Keys of a run file that all tasks share."""
    tasks: Mapping[str, ProtocolTask]
    seeds: tuple[int, ...]
    name: str = ""
    """Its folder, file and variant."""
    kind: Kind = "glue"
    unverified: tuple[str, ...] = ()
    """Values that no publication that was read states."""
    differences: tuple[str, ...] = ()
    """What is not as in the source."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """See `ProtocolTask.grid`; a task adds its own keys."""
    evaluate: Evaluate | None = None
    average: Average | None = None

    def __post_init__(self) -> None:
        for name, task in self.tasks.items():
            if task.intermediate and task.intermediate not in self.tasks:
                raise InvalidRequest(
                    f"tasks.{name}.intermediate is {task.intermediate!r}; it must be one of the tasks: "
                    f"{', '.join(self.tasks)}"
                )

    def seeds_of(self, task: str) -> tuple[int, ...]:
        """The seeds of a task."""
        return self.tasks[task].seeds or self.seeds

    def grid_of(self, task: str) -> Mapping[str, tuple[Any, ...]]:
        """The values of each key that a task is run with."""
        return {**self.grid, **self.tasks[task].grid}


def protocol_names(kind: Kind | None = None) -> tuple[str, ...]:
    """The names of all protocols of a kind, such as "glue/run_glue"; None for those of every kind."""
    names = []
    for path in sorted(_folder().glob("*/*.toml")):
        if path.stem.endswith("data") or (kind is not None and path.parent.name != kind):
            continue
        name = f"{path.parent.name}/{path.stem}"
        names += [f"{name}-{variant}" for variant in _table(path).get("variants", {})] or [name]
    return tuple(names)


def read_protocol(name: str | Path, kind: Kind = "glue") -> Protocol:
    """The protocol of that name, with or without its folder, or that of a TOML file.

    Args:
        name: such as "run_glue", "glue/electra-base", or the path of a file that ends in ``.toml``.
        kind: the folder of a name without one.

    Raises:
        InvalidRequest: there is no such protocol, or its file is invalid.
    """
    if str(name).endswith(".toml"):
        return _read(Path(name), "", f"{kind}/{Path(name).stem}", kind)
    full = str(name) if "/" in str(name) else f"{kind}/{name}"
    names = protocol_names(kind)
    if full not in names:
        variants = [variant for variant in names if variant.startswith(f"{full}-")]
        raise InvalidRequest(
            f"the protocol {str(name)!r} has one variant for each size of a model; name one of: "
            f"{', '.join(variants)}"
            if variants
            else f"there is no protocol {str(name)!r} for {kind}; name one of: {', '.join(names)}, or a file "
            "that ends in .toml"
        )
    path = _folder() / f"{full}.toml"
    if path.is_file():
        return _read(path, "", full, kind)
    stem, _, variant = full.rpartition("-")
    return _read(_folder() / f"{stem}.toml", variant, full, kind)


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of all tables; later ones count, and tables within them are merged in the same way."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            inner = result.get(key)
            if isinstance(inner, Mapping) and isinstance(value, Mapping):
                result[key] = merged(inner, value)
            else:
                result[key] = value
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key as tables within tables."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner = value
        for part in reversed(key.split(".")):
            inner = {part: inner}
        result = merged(result, inner)
    return result


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])


def _table(path: Path) -> dict[str, Any]:
    return read_toml(path, dict)


def _read(path: Path, variant: str, name: str, kind: Kind) -> Protocol:
    def read(table: Mapping[str, Any]) -> Protocol:
        values = dict(table)
        variants = values.pop("variants", {})
        if variants and not variant:
            raise InvalidRequest(
                f"it has the variants {', '.join(variants)}, which are chosen by name; leave one, under [run]"
            )
        if variant:
            values = merged(values, dict(variants)[variant])
        data = values.pop("data", None)
        official = _table(path.parent / data) if isinstance(data, str) else {}
        tasks = values.get("tasks", {})
        for task in tasks:
            if data is not None and task not in official:
                raise InvalidRequest(f"tasks.{task} is none of the tasks of {data}: {', '.join(official)}")
        keys = {entry.name for entry in fields(Protocol)} - {"name", "kind"}
        if odd := [key for key in values if key not in keys]:
            raise InvalidRequest(
                f"it has no key {odd[0]!r}; it can hold data, variants, {', '.join(sorted(keys))}"
            )
        values["tasks"] = {}
        protocol = read_table(Protocol, {**values, "name": name, "kind": kind}, "")
        task_of = {task: _task(merged(official.get(task, {}), own), task) for task, own in tasks.items()}
        return Protocol(**{**_values(protocol), "tasks": task_of})

    return read_toml(path, read)


def _task(table: Mapping[str, Any], name: str) -> ProtocolTask:
    return read_table(ProtocolTask, table, f"tasks.{name}")


def _values(protocol: Protocol) -> dict[str, Any]:
    return {entry.name: getattr(protocol, entry.name) for entry in fields(protocol)}


def tasks_of(protocol: Protocol, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The tasks to run, in the protocol's order.

    Raises:
        InvalidRequest: one of them is not the protocol's.
    """
    for task in wanted or ():
        if task not in protocol.tasks:
            raise InvalidRequest(
                f"{protocol.name} has no task {task!r}; name some of: {', '.join(protocol.tasks)}"
            )
    return tuple(task for task in protocol.tasks if wanted is None or task in wanted)
