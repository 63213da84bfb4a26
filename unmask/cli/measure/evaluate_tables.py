"""Tables of the scores of protocols and of models with a head."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unmask.cli.output import console, safe, table

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.base.intervals import Interval
    from unmask.evaluate.protocols.protocol_report import ProtocolReport
    from unmask.evaluate.protocols.scores import ClassificationScores, ClassScores, EntityScores
    from unmask.evaluate.protocols.squad import SquadScores

LEVEL = "95 %"
"""The confidence of intervals."""


def show_report(report: "ProtocolReport") -> None:
    """Every column over seeds, the average, and what was chosen."""
    from unmask.evaluate.protocols.protocol_report import average_sentence

    screen = console()
    right = ("mean", "standard deviation", "median", "seeds")
    made = table(None, "metric", *right, f"by seed ({LEVEL} interval)", right=right)
    for task in report.tasks.values():
        for name, one in task.columns.items():
            each = ", ".join(f"{seed}: {one.value(seed)}" for seed in one.values)
            deviation = "" if one.standard_deviation is None else f"{one.standard_deviation:.4f}"
            row = (safe(name), f"{one.mean:.4f}", deviation, f"{one.median:.4f}", str(len(one.values)))
            made.add_row(*row, safe(each))
    screen.print(made)
    if report.average is not None:
        screen.print(safe(average_sentence(report.average)))
    for task in report.tasks.values():
        if task.chosen_by is not None:
            chosen = ", ".join(f"{key} = {value}" for key, value in task.chosen.items())
            screen.print(safe(f"{task.title}: chosen by {task.chosen_by}: {chosen}"))
    for name, why in report.skipped.items():
        screen.print(safe(f"{name} was not run: {why}"))
    screen.print(safe(f"{report.model} by the protocol {report.protocol}. {report.note}"))


def show_squad(result: "SquadScores") -> None:
    """All questions, those with and without an answer, and the best thresholds."""
    screen = console()
    right = ("exact match", f"{LEVEL} interval", "F1", f"{LEVEL} interval ", "number")
    made = table(None, "questions", *right, right=right)
    rows = {"all": result, "with an answer": result.has_answer, "without an answer": result.no_answer}
    for name, one in rows.items():
        if one is not None:
            exact, overlap = (_between(one.intervals.get(key), 2) for key in ("exact_match", "f1"))
            row = (f"{one.exact_match:.2f}", exact, f"{one.f1:.2f}", overlap, f"{one.questions:,}")
            made.add_row(name, *row)
    screen.print(made)
    if result.threshold is not None:
        screen.print(f"threshold {result.threshold:g}")
    if (best := result.best_threshold) is not None:
        screen.print(
            f"with the best thresholds on the same data: exact match {best.exact_match:.2f} "
            f"({best.exact_match_threshold:.3f}), F1 {best.f1:.2f} ({best.f1_threshold:.3f})"
        )


def show_entities(result: "EntityScores") -> None:
    """Every type, and all together."""
    screen = console()
    screen.print(_classes("type", result.types, result.intervals))
    precision, recall, f1, accuracy = (
        _with(getattr(result, name), result.intervals.get(name))
        for name in ("precision", "recall", "f1", "accuracy")
    )
    screen.print(
        safe(
            f"{result.model}: precision {precision}, recall {recall}, "
            f"F1 {f1} over all entities (micro); accuracy of words {accuracy} "
            f"({result.sentences:,} sentences, {result.words:,} words). In brackets: {LEVEL} confidence "
            "intervals"
        )
    )


def show_classes(result: "ClassificationScores") -> None:
    """Every class, the confusions, and all together."""
    screen = console()
    screen.print(_classes("label", result.classes, result.intervals))
    names = [safe(name) for name in result.classes]
    made = table("gold (rows) and predicted", "", *names, right=tuple(names))
    for name, row in zip(names, result.confusion, strict=True):
        made.add_row(name, *(f"{count:,}" for count in row))
    screen.print(made)
    between = result.intervals
    fit = ", ".join(f"{name} {_with(value, between.get(name))}" for name, value in result.calibration.items())
    accuracy, macro, matthews = (
        _with(getattr(result, name), between.get(name)) for name in ("accuracy", "macro_f1", "matthews")
    )
    screen.print(
        safe(
            f"{result.model}: accuracy {accuracy}, macro F1 {macro}, Matthews "
            f"correlation {matthews} ({result.texts:,} texts); probabilities: {fit}. In brackets: {LEVEL} "
            "confidence intervals"
        )
    )


def _classes(
    title: str, classes: "Mapping[str, ClassScores]", intervals: "Mapping[str, Interval]"
) -> "Table":
    right = ("precision", "recall", "F1", f"{LEVEL} interval", "gold", "predicted")
    made = table(None, title, *right, right=right)
    for name, one in classes.items():
        figures = (f"{value:.4f}" for value in (one.precision, one.recall, one.f1))
        between = _between(intervals.get(f"f1[{name}]"), 4)
        made.add_row(safe(name), *figures, between, f"{one.gold:,}", f"{one.predicted:,}")
    return made


def _between(interval: "Interval | None", places: int) -> str:
    """The ends of an interval; empty if there is none."""
    return "" if interval is None else f"{interval.low:.{places}f} to {interval.high:.{places}f}"


def _with(value: float, interval: "Interval | None") -> str:
    """A figure with its interval in brackets."""
    return f"{value:.4f}" + ("" if interval is None else f" ({_between(interval, 4)})")
