"""Which published encoder for a task, a text length and a device: a ranking by recorded figures.

Those who read the texts come first, then those who fit the device, then those with the better figure.
"""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Literal, get_args

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.families import DEFAULT_NAME, FAMILIES, find_pretraining
from unmask.spec import EncoderSpec, role_of
from unmask.spec.shapes import parameter_count, tensor_shapes
from unmask.weights import find, read_checkpoint

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
        {task: tuple(rules["measures"]) for task, rules in data["tasks"].items()},
        {task: tuple(rules["long"]) for task, rules in data["tasks"].items() if "long" in rules},
    )


CPU_PARAMETERS = 150_000_000
"""On a CPU, encoders whose layers have more parameters come after the others."""
LONG_TOKENS = 512
"""Texts above this are long: most encoders of before 2023 read no more."""
DEFAULT_TOKENS = 256
"""The longest text of the default model, from its sentence_bert_config.json."""
MINI = "unmask-mini"
BYTES = 4
"""Of a parameter in float32."""


@dataclass(frozen=True)
class Candidate:
    """A model that could be used."""

    name: str
    family: str
    parameters: int
    layer_parameters: int
    """Of all layers, shared ones counted in each: what decides its speed."""
    max_tokens: int | None
    """The longest text; None: no limit."""
    trained_tokens: int | None
    """The longest training text, if it is known and longer texts can be read."""
    masked_words: bool
    """Whether it was pretrained to predict masked words."""


@dataclass(frozen=True)
class Ranked:
    """A model at its place, with the reasons."""

    name: str
    family: str
    parameters: int
    weights_mb: int
    """Size of the weights in float32, computed."""
    ready: str | None
    """How to use it without training; None if it has to be fine-tuned for this task."""
    reads: bool
    """Whether it reads texts of this length, and was trained on such."""
    score: Figure | None
    """The figure that it is ranked by; None: it has none."""
    scores: tuple[Figure, ...]
    """All figures of this task."""
    speed: Figure | None
    """The recorded speed at the length nearest to the one asked for; None: none is recorded."""
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Guide:
    """Models for a task, best first."""

    task: Task
    tokens: int
    device: Device
    order: str
    """How models are ordered, in a sentence."""
    ready: tuple[Ranked, ...]
    """Those that need no training for this task."""
    to_train: tuple[Ranked, ...]
    """Those to fine-tune."""


def guide(task: Task, *, tokens: int = 256, device: Device = "cpu") -> Guide:
    """Rank published encoders for a task by recorded figures; nothing is measured or downloaded.

    Models that read the texts come first; on a CPU, encoders up to `CPU_PARAMETERS` before larger ones; then
    models with a figure of the task's first measure, the better before the worse; then smaller before larger.

    Args:
        task: one of `TASKS`.
        tokens: the length of the texts.
        device: ``cpu`` or ``cuda``.

    Raises:
        InvalidRequest: there is no such task or device, or ``tokens`` is below 1.
    """
    check_choice("task", task, TASKS)
    check_choice("device", device, DEVICES)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InvalidRequest(f"tokens is {tokens!r}; give the length of the texts, 1 or more")
    figures = read_figures()
    measures = figures.measures[task]
    if tokens > LONG_TOKENS:
        measures = figures.long_measures.get(task, ()) + measures
    asked = Guide(task, tokens, device, _order(device, measures), ready=(), to_train=())
    placed = []
    for candidate in candidates():
        if task == "masked-words" and not candidate.masked_words:
            continue
        ranked = _ranked(candidate, asked, figures, measures)
        placed.append((_place(candidate, ranked, asked, measures), ranked))
    every = [ranked for _, ranked in sorted(placed, key=itemgetter(0))]
    return replace(
        asked,
        ready=tuple(ranked for ranked in every if ranked.ready is not None),
        to_train=tuple(ranked for ranked in every if ranked.ready is None),
    )


def _order(device: Device, measures: tuple[str, ...]) -> str:
    small = f"; layers of at most {CPU_PARAMETERS // 10**6} million parameters before larger ones"
    return (
        f"models that read such texts first{small if device == 'cpu' else ''}; "
        f"then by {', then by '.join(measures)}; then the smaller one"
    )


def candidates() -> Iterator[Candidate]:
    """The published checkpoints of every family, and the one that comes with this package."""
    for family in FAMILIES:
        for checkpoint in family.published:
            spec = checkpoint.pretraining or checkpoint.spec
            limit = DEFAULT_TOKENS if checkpoint.name == DEFAULT_NAME else spec.max_tokens
            yield _candidate(checkpoint.name, family.name, spec, limit)
    mini = read_checkpoint(find(MINI))
    yield _candidate(MINI, mini.family.name, mini.spec, mini.max_tokens, mini.trained_tokens)


def _candidate(
    name: str, family: str, spec: EncoderSpec, limit: int | None, trained: int | None = None
) -> Candidate:
    counts = {key: prod(shape) for key, shape in tensor_shapes(spec).items()}
    # Shared weights are computed with once in every layer that uses them.
    layers = sum(
        count
        for weights in spec.weights_of_layer
        for key, count in counts.items()
        if key.startswith(f"layers.{weights}.")
    )
    known = find_pretraining(name)
    masked = any(role_of(head) == "masked" for head in spec.heads) and (
        known is None or "masked" in known.objective
    )
    return Candidate(
        name, family, parameter_count(spec), layers, limit, trained or spec.trained_tokens, masked
    )


def _ranked(candidate: Candidate, asked: Guide, figures: Figures, measures: tuple[str, ...]) -> Ranked:
    task, tokens, device = asked.task, asked.tokens, asked.device
    scores = figures.scores.get((task, candidate.name), ())
    usable = [figure for figure in scores if figure.comparable]
    score = next((figure for measure in measures for figure in usable if figure.measure == measure), None)
    speeds = figures.speeds.get((device, candidate.name), ())
    speed = min(speeds, key=lambda figure: _distance(figure, tokens), default=None)
    ready = figures.ready.get((task, candidate.name))
    if task == "masked-words":
        ready = f"unmask fill TEXT -m {candidate.name}"
    return Ranked(
        candidate.name,
        candidate.family,
        candidate.parameters,
        round(BYTES * candidate.parameters / 1e6),
        ready,
        _reach(candidate, tokens) == 0,
        score,
        scores,
        speed,
        tuple(_reasons(candidate, tokens, device)),
    )


def _distance(figure: Figure, tokens: int) -> float:
    return abs(math.log((figure.tokens or tokens) / tokens))


def _reach(candidate: Candidate, tokens: int) -> int:
    """0: it reads such texts; 1: it was trained on shorter ones; 2: they must be cut."""
    if candidate.max_tokens is not None and tokens > candidate.max_tokens:
        return 2
    return 1 if candidate.trained_tokens is not None and tokens > candidate.trained_tokens else 0


def _place(
    candidate: Candidate, ranked: Ranked, asked: Guide, measures: tuple[str, ...]
) -> tuple[int, bool, int, float, int, str]:
    large = asked.device == "cpu" and candidate.layer_parameters > CPU_PARAMETERS
    which = len(measures) if ranked.score is None else measures.index(ranked.score.measure)
    value = 0.0 if ranked.score is None else ranked.score.value
    return _reach(candidate, asked.tokens), large, which, -value, candidate.layer_parameters, candidate.name


def _reasons(candidate: Candidate, tokens: int, device: Device) -> Iterator[str]:
    match _reach(candidate, tokens):
        case 2:
            yield f"reads at most {candidate.max_tokens:,} tokens; longer texts must be cut, or read in parts"
        case 1:
            trained = f"was trained on at most {candidate.trained_tokens:,} tokens"
            yield f"{trained}; longer texts are read, untested"
        case _:
            limit = candidate.max_tokens or candidate.trained_tokens
            yield "reads texts of this length" + (f" (up to {limit:,} tokens)" if limit else "")
    if device == "cpu" and candidate.layer_parameters > CPU_PARAMETERS:
        yield f"{candidate.layer_parameters / 1e6:,.0f} million parameters in its layers are slow on a CPU"
