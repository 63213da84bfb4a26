"""The report of a protocol: every figure of every run, means and deviations by named column; as a page."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.base.intervals import Interval
from unmask.evaluate.protocols.protocols import Protocol, ProtocolTask
from unmask.training.finetune.records import skipped_sentence
from unmask.training.run.log import LOWER_IS_BETTER

DEV = "These are scores on dev data, not on test data."


@dataclass(frozen=True)
class Column:
    """One metric of one task over seeds; correlations and shares are from 0 to 1, answers in percent."""

    values: Mapping[int, float]
    """By seed."""
    mean: float
    standard_deviation: float | None
    """Of a sample, with n - 1; None for a single seed."""
    median: float
    intervals: Mapping[int, Interval] = field(default_factory=dict)
    """By seed, the 95 % confidence interval of its value over texts; none for what was scored without."""

    def value(self, seed: int) -> str:
        """The value of a seed with its interval, as tables have it."""
        interval = self.intervals.get(seed)
        return f"{self.values[seed]:.4f}" + ("" if interval is None else f" ({interval:.4f})")


@dataclass(frozen=True)
class Trial:
    """One combination of the grid with all seeds."""

    values: Mapping[str, Any]
    """By the dotted key of a run file; empty without a grid."""
    figures: Mapping[int, Mapping[str, float]]
    """Every figure, raw, by seed."""
    steps: Mapping[int, int]
    best_steps: Mapping[int, int]
    """The step whose weights are scored."""
    columns: Mapping[str, Column]


@dataclass(frozen=True)
class TaskReport:
    """One task."""

    title: str
    started_from: str
    """The model given, or the folder of the intermediate model."""
    seeds: tuple[int, ...]
    columns: Mapping[str, Column]
    """Of the chosen combination, by names such as "MRPC accuracy"."""
    chosen: Mapping[str, Any]
    """The combination with the best mean of ``chosen_by``; empty without a grid."""
    chosen_by: str | None
    """The column that chose; None without a grid."""
    trials: tuple[Trial, ...]
    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By seed, every number of the scores on other data than those of the runs."""
    skipped_lines: Mapping[str, int] = field(default_factory=dict)
    """By file, the lines that were left out because they have too few columns."""


@dataclass(frozen=True)
class AverageReport:
    """The protocol's average over the tasks that were run."""

    value: float
    of: tuple[str, ...]
    """The columns in it."""
    missing: tuple[str, ...]
    """Tasks of the protocol's average that were not run; with any, it is not the published average."""
    how: str


@dataclass(frozen=True)
class ProtocolReport:
    """The report of a protocol."""

    protocol: str
    model: str
    note: str
    """What the scores are, and what was chosen on the same data."""
    source: str
    comparable: tuple[str, ...]
    unverified: tuple[str, ...]
    differences: tuple[str, ...]
    tasks: Mapping[str, TaskReport]
    skipped: Mapping[str, str]
    """Tasks that were asked for and not run, with the reason."""
    average: AverageReport | None


def column(values: Mapping[int, float], intervals: Mapping[int, Interval]) -> Column:
    """Mean, standard deviation and median of one value per seed."""
    some = list(values.values())
    deviation = statistics.stdev(some) if len(some) > 1 else None
    return Column(dict(values), statistics.fmean(some), deviation, statistics.median(some), dict(intervals))


def columns_of(
    task: ProtocolTask,
    figures: Mapping[int, Mapping[str, float]],
    intervals: Mapping[int, Mapping[str, Interval]],
) -> dict[str, Column]:
    """The metrics of a task by their names in tables, those of each dev part by itself.

    ``figures`` and ``intervals`` are by seed and name.
    """
    columns = {}
    for name, key in task.metrics.items():
        parts = {"": task.dev_name, **{f"{part}/": part for part in task.also}}
        for prefix, part in parts.items():
            title = " ".join(filter(None, (task.title, part, name)))
            values = {seed: some[prefix + key] for seed, some in figures.items()}
            around = {seed: some[prefix + key] for seed, some in intervals.items() if prefix + key in some}
            columns[title] = column(values, around)
    return columns


def task_report(
    task: ProtocolTask, started_from: str, seeds: Sequence[int], trials: Sequence[Trial]
) -> TaskReport:
    """The report of a task, with the combination whose mean of the choosing figure over seeds is best."""
    sign = -1 if task.choose in LOWER_IS_BETTER else 1

    def mean(trial: Trial) -> float:
        return sign * statistics.fmean(some[task.choose] for some in trial.figures.values())

    best = max(trials, key=mean)
    return TaskReport(
        task.title,
        started_from,
        tuple(seeds),
        best.columns,
        best.values,
        f"mean dev {task.choose} over seeds" if len(trials) > 1 else None,
        tuple(trials),
    )


def average_report(protocol: Protocol, tasks: Mapping[str, TaskReport]) -> AverageReport | None:
    """The protocol's average over the tasks that were run; None if it defines none."""
    average = protocol.average
    if average is None or not (present := [task for task in average.columns if task in tasks]):
        return None
    names: list[str] = []
    values = []
    for task in present:
        titles = [f"{tasks[task].title} {name}" for name in average.columns[task]]
        names += titles
        values.append(
            statistics.fmean(getattr(tasks[task].columns[title], average.statistic) for title in titles)
        )
    missing = tuple(protocol.tasks[task].title for task in average.columns if task not in tasks)
    return AverageReport(statistics.fmean(values), tuple(names), missing, average.how)


def note_of(protocol: Protocol, tasks: Mapping[str, TaskReport]) -> str:
    """What kind of scores these are, and what was chosen on the data that they are of."""
    sentences = [DEV]
    if any(len(task.trials) > 1 for task in tasks.values()):
        sentences.append("The combination of the grid was chosen on the same data, so they are optimistic.")
    metrics = [protocol.run, *(task.run for task in protocol.tasks.values())]
    if any("metric" in settings.get("evaluation", {}) for settings in metrics):
        sentences.append("The evaluation that counts in each run was chosen on the same data too.")
    return " ".join(sentences)


def markdown(report: ProtocolReport) -> str:
    """The report as a page."""
    lines = [f"# {report.model} by the protocol {report.protocol}", "", report.note, ""]
    lines += [
        "| metric | mean | standard deviation | median | seeds | by seed (95 % interval over texts) |",
        "|---|---|---|---|---|---|",
    ]
    for task in report.tasks.values():
        for name, metric in task.columns.items():
            deviation = "" if metric.standard_deviation is None else f"{metric.standard_deviation:.4f}"
            each = ", ".join(f"{seed}: {metric.value(seed)}" for seed in metric.values)
            lines.append(
                f"| {name} | {metric.mean:.4f} | {deviation} | {metric.median:.4f} | {len(metric.values)} "
                f"| {each} |"
            )
    lines.append("")
    if report.average is not None:
        lines += [f"**{average_sentence(report.average)}**", ""]
    for task in report.tasks.values():
        if task.chosen_by is not None:
            chosen = ", ".join(f"{key} = {value}" for key, value in task.chosen.items())
            lines.append(
                f"- {task.title}: of {len(task.trials)} combinations the one with the best {task.chosen_by} "
                f"counts: {chosen}"
            )
        lines += [f"- {skipped_sentence(file, count)}" for file, count in task.skipped_lines.items()]
        if task.started_from != report.model:
            lines.append(f"- {task.title} starts from {task.started_from}")
    lines += [f"- {name} was not run: {why}" for name, why in report.skipped.items()]
    for title, some in (
        ("Source", [report.source]),
        ("May be set beside", report.comparable),
        ("Differences from the source", report.differences),
        ("Not verified", report.unverified),
    ):
        if some:
            lines += ["", f"## {title}", "", *(f"- {line}" for line in some)]
    return "\n".join(lines) + "\n"


def average_sentence(average: AverageReport) -> str:
    """The average with what it is made of."""
    missing = f"; not the published average, because {', '.join(average.missing)} were not run"
    return (
        f"Average of {', '.join(average.of)}: {average.value:.4f} ({average.how}"
        f"{missing if average.missing else ''})"
    )
