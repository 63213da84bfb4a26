"""Tables of the scores of protocols and of models with a head."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unmask.cli.output import console, safe, table

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evaluate.protocols.protocol_report import ProtocolReport
    from unmask.evaluate.protocols.scores import ClassificationScores, ClassScores, EntityScores
    from unmask.evaluate.protocols.squad import SquadScores


def show_report(report: "ProtocolReport") -> None:
    """Every column over seeds, the average, and what was chosen."""
    from unmask.evaluate.protocols.protocol_report import average_sentence

    screen = console()
    right = ("mean", "standard deviation", "median", "seeds")
    made = table(None, "metric", *right, "by seed", right=right)
    for task in report.tasks.values():
        for name, one in task.columns.items():
            each = ", ".join(f"{seed}: {value:.4f}" for seed, value in one.values.items())
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
    right = ("exact match", "F1", "number")
    made = table(None, "questions", *right, right=right)
    rows = {"all": result, "with an answer": result.has_answer, "without an answer": result.no_answer}
    for name, one in rows.items():
        if one is not None:
            made.add_row(name, f"{one.exact_match:.2f}", f"{one.f1:.2f}", f"{one.questions:,}")
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
    screen.print(_classes("type", result.types))
    screen.print(
        safe(
            f"{result.model}: precision {result.precision:.4f}, recall {result.recall:.4f}, "
            f"F1 {result.f1:.4f} over all entities (micro); accuracy of words {result.accuracy:.4f} "
            f"({result.sentences:,} sentences, {result.words:,} words)"
        )
    )


def show_classes(result: "ClassificationScores") -> None:
    """Every class, the confusions, and all together."""
    screen = console()
    screen.print(_classes("label", result.classes))
    names = [safe(name) for name in result.classes]
    made = table("gold (rows) and predicted", "", *names, right=tuple(names))
    for name, row in zip(names, result.confusion, strict=True):
        made.add_row(name, *(f"{count:,}" for count in row))
    screen.print(made)
    fit = ", ".join(f"{name} {value:.4f}" for name, value in result.calibration.items())
    screen.print(
        safe(
            f"{result.model}: accuracy {result.accuracy:.4f}, macro F1 {result.macro_f1:.4f}, Matthews "
            f"correlation {result.matthews:.4f} ({result.texts:,} texts); probabilities: {fit}"
        )
    )


def _classes(title: str, classes: "Mapping[str, ClassScores]") -> "Table":
    right = ("precision", "recall", "F1", "gold", "predicted")
    made = table(None, title, *right, right=right)
    for name, one in classes.items():
        figures = (f"{value:.4f}" for value in (one.precision, one.recall, one.f1))
        made.add_row(safe(name), *figures, f"{one.gold:,}", f"{one.predicted:,}")
    return made
