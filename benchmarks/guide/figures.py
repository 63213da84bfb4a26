"""The figures that the guide ranks by: one data file, each number with its source and date."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

Task = Literal["search", "classification", "tagging", "answering", "reranking", "masked-words"]
Device = Literal["cpu", "cuda"]
Kind = Literal["measured", "published"]

TASKS: tuple[Task, ...] = get_args(Task)
DEVICES: tuple[Device, ...] = get_args(Device)

FILE = Path(__file__).with_name("figures.toml")


@dataclass(frozen=True)
class Figure:
    """One number about one model."""

    measure: str
    """What was measured, with its unit."""
    value: float
    kind: Kind
    """``measured``: by this project; ``published``: by others."""
    source: str
    date: str
    tokens: int | None = None
    """The length of the texts, of a speed."""
    comparable: bool = True
    """Whether models are ranked by it."""


@dataclass(frozen=True)
class Figures:
    """All of them, by what asks for them."""

    scores: dict[tuple[str, str], tuple[Figure, ...]]
    """By task and model."""
    speeds: dict[tuple[str, str], tuple[Figure, ...]]
    """By device and model."""
    ready: dict[tuple[str, str], str]
    """By task and model: how to use what needs no training."""
    measures: dict[str, tuple[str, ...]]
    """By task: the measures to rank by, in order."""
    long_measures: dict[str, tuple[str, ...]]
    """The same for long texts, for tasks where others are better."""


@cache
def read_figures() -> Figures:
    """The data file."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    scores: dict[tuple[str, str], tuple[Figure, ...]] = {}
    speeds: dict[tuple[str, str], tuple[Figure, ...]] = {}
    for group in data["figures"]:
        for model, value in group["values"].items():
            figure = Figure(
                group["measure"],
                value,
                group["kind"],
                group["source"],
                group["date"],
                comparable=group.get("comparable", True),
            )
            key = (group["task"], model)
            scores[key] = (*scores.get(key, ()), figure)
    for group in data["speeds"]:
        for model, value in group["values"].items():
            figure = Figure(
                group["unit"], value, group["kind"], group["source"], group["date"], group["tokens"]
            )
            key = (group["device"], model)
            speeds[key] = (*speeds.get(key, ()), figure)
    return Figures(
        scores,
        speeds,
        {(group["task"], model): group["how"] for group in data["ready"] for model in group["models"]},
        {task: tuple(one["measures"]) for task, one in data["tasks"].items()},
        {task: tuple(one["long"]) for task, one in data["tasks"].items() if "long" in one},
    )
