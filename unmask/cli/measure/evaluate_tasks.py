"""``unmask evaluate glue``, ``squad``, ``ner`` and ``classify``: protocols by name, models with a head."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from unmask.cli.measure.options import LABELED, LabeledOptions, RenameOption, renamed
from unmask.cli.options import JsonOption, ModelOption, OutputOptions, RunOptions, listed, set_threads
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.cli.tasks.predict import OverlapOption
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.base.intervals import Interval
    from unmask.evaluate.protocols.report import ProtocolReport
    from unmask.evaluate.protocols.scores import ClassificationScores, ClassScores, EntityScores
    from unmask.evaluate.protocols.squad import SquadScores
    from unmask.models.model import Model
    from unmask.training.finetune.settings import DataSettings

LEVEL = "95 %"
"""The confidence of intervals."""

TrainDevice = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(name="--device", help="where to train and score")
]
SeedsOption = Annotated[list[str] | None, listed("seeds; default: those of the protocol", "--seeds")]
Scores = TypeVar("Scores")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Fine-tuning before the evaluation."""

    protocol: Annotated[
        str | None, Parameter(name="--protocol", help="a protocol to fine-tune by, or a file of one")
    ] = None
    train: Annotated[Path | None, Parameter(name="--train", help="with --protocol: the training data")] = None
    dev: Annotated[
        Path | None, Parameter(name="--dev", help="with --protocol: data that may choose the best evaluation")
    ] = None
    seeds: SeedsOption = None
    runs: Annotated[
        Path | None,
        Parameter(
            name="--runs", help="with --protocol: the folder of the runs, resumed if they were stopped"
        ),
    ] = None

    def check(self) -> bool:
        """Whether to train.

        Raises:
            InvalidRequest: options of training are incomplete.
        """
        options = {"--train": self.train, "--dev": self.dev, "--seeds": self.seeds, "--runs": self.runs}
        if self.protocol is None:
            if given_names := [name for name, value in options.items() if value is not None]:
                raise InvalidRequest(f"{given_names[0]} is given without --protocol; name the protocol too")
            return False
        if missing := [name for name in ("--train", "--runs") if options[name] is None]:
            raise InvalidRequest(f"--protocol is given without {missing[0]}; name it too")
        return True


TRAIN = TrainOptions()


def glue(
    *,
    model: ModelOption = "default",
    protocol: Annotated[str, Parameter(help="its name, or the file of one")],
    data: Annotated[Path, Parameter(help="the folder with the official files, such as MRPC/train.tsv")],
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="the folder of the runs and the report")],
    tasks: Annotated[list[str] | None, listed("tasks; those without data are skipped; default: all")] = None,
    seeds: SeedsOption = None,
    intermediate: Annotated[
        str | None,
        Parameter(help="a model fine-tuned on MNLI, for protocols in which tasks start from one"),
    ] = None,
    device: TrainDevice = "auto",
    threads: Annotated[int | None, Parameter(help="CPU threads of torch; default: torch's choice")] = None,
    keep_models: Annotated[bool, Parameter(help="keep the model of every run")] = True,
    json: JsonOption = False,
) -> None:
    """Fine-tune on tasks of GLUE by a protocol, and report every metric of every seed on the dev data.

    A killed command resumes exactly where it was if it is given again; finished runs are kept.
    """
    from unmask.evaluate.protocols.protocols import read_protocol

    chosen = read_protocol(protocol, "glue")
    set_threads(threads)
    numbers = _seeds(seeds)
    from unmask.evaluate.protocols.glue import evaluate_glue
    from unmask.training.run.callbacks import ProgressPrinter

    with closing(ProgressPrinter()) as printer:
        report = evaluate_glue(
            model,
            chosen,
            data,
            output,
            tasks=tasks,
            seeds=numbers,
            intermediate=intermediate,
            device=device,
            keep_models=keep_models,
            callback=printer,
        )
    if json:
        print_json(report)
    else:
        _show_report(report)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoringOptions(RunOptions, OutputOptions):
    """The model that is scored on a file, its windows, and where the scores go."""

    model: ModelOption = "default"
    max_tokens: Annotated[
        int | None,
        Parameter(name="--max-tokens", help="the longest window; default: what the model reads"),
    ] = None
    overlap_tokens: OverlapOption = None

    def evaluate(
        self,
        data: Path,
        keys: Mapping[str, Any],
        score: Callable[..., Scores],
        show: Callable[[Scores], None],
        *,
        adapter: str | None = None,
        protocol: Literal["squad", "ner"] | None = None,
        train: TrainOptions = TRAIN,
    ) -> None:
        """Score the model, or fine-tune it first with every seed and score each.

        Args:
            data: the file.
            keys: of a run file's ``[data]``; None where the user named no value.
            score: maps a model, the settings of the data and ``progress`` to scores.
            show: prints the scores.
            adapter: of the model "default" if none is named, as in the command that predicts.
            protocol: which kind of protocol ``train`` may name.
            train: how to fine-tune.
        """
        keys = {**keys, "max_tokens": self.max_tokens, "overlap_tokens": self.overlap_tokens}

        def scored(model: "Model", settings: "DataSettings") -> Scores:
            with progress("Reading texts", 0) as report:
                return score(model, settings, progress=report)

        training = protocol is not None and train.check()
        self.check()
        from unmask.evaluate.protocols.runs import data_settings

        if protocol is None or not training:
            self.finish(scored(self.load(self.model, adapter), data_settings(keys, data)), show)
            return
        self.finish(self._trained(data, keys, scored, protocol, train), _show_report)

    def _trained(
        self,
        data: Path,
        keys: Mapping[str, Any],
        score: Callable[["Model", "DataSettings"], Any],
        kind: Literal["squad", "ner"],
        train: TrainOptions,
    ) -> "ProtocolReport":
        from unmask.evaluate.protocols.protocols import merged, read_protocol

        for option in ("adapter", "revision", "kernel"):
            if getattr(self, option) is not None:
                raise InvalidRequest(
                    f"--{option} is given with --protocol, which trains all weights; leave it out"
                )
        protocol = read_protocol(train.protocol or "", kind)
        seeds = _seeds(train.seeds)
        set_threads(self.threads)
        from unmask.evaluate.protocols.runs import data_settings, evaluate_trained
        from unmask.training.run.callbacks import ProgressPrinter

        named = {key: value for key, value in keys.items() if value is not None}
        settings = data_settings(merged(protocol.run.get("data", {}), named), data)
        trained = self.of_another_model()
        with closing(ProgressPrinter()) as printer:
            return evaluate_trained(
                self.model,
                protocol,
                train.train or Path(),
                train.runs or Path(),
                lambda folder: score(trained.load(str(folder)), settings),
                dev=train.dev,
                seeds=seeds,
                ignore_tensors=self.ignore_tensor or (),
                device="cuda" if self.device.startswith("cuda") else "cpu",
                callback=printer,
            )


SCORING = ScoringOptions()


def squad(
    *,
    data: Annotated[Path, Parameter(help="a file in SQuAD's layout, version 1.1 or 2.0")],
    threshold: Annotated[
        float,
        Parameter(help="version 2.0: no answer if its score is above the best answer's by more than this"),
    ] = 0.0,
    max_answer_tokens: Annotated[int, Parameter(help="the longest answer, in tokens")] = 30,
    train: TrainOptions = TRAIN,
    options: ScoringOptions = SCORING,
) -> None:
    """Exact match and F1 of answers by SQuAD's official rules, in percent.

    For version 2.0 the scores with a fixed threshold, of questions with and without an answer, and separately
    those with the threshold that is best on the same data.
    """
    from unmask.evaluate.protocols.squad import squad_scores

    score = partial(squad_scores, threshold=threshold, max_answer_tokens=max_answer_tokens)
    keys = {"format": "squad"}
    options.evaluate(data, keys, score, _show_squad, adapter="answers", protocol="squad", train=train)


def ner(
    *,
    data: Annotated[Path, Parameter(help="a CoNLL file: a word and its label per line")],
    rename_labels: RenameOption = None,
    train: TrainOptions = TRAIN,
    options: ScoringOptions = SCORING,
) -> None:
    """Precision, recall and F1 of entities, of each type and over all, as seqeval's default mode has them."""
    from unmask.evaluate.protocols.scores import entity_scores

    keys = {"long_texts": "window", "rename_labels": renamed(rename_labels)}
    options.evaluate(data, keys, entity_scores, _show_entities, adapter="names", protocol="ner", train=train)


def classify(
    *,
    data: Annotated[Path, Parameter(help="a table with a text and its label per row")],
    columns: LabeledOptions = LABELED,
    options: ScoringOptions = SCORING,
) -> None:
    """Accuracy, macro F1, Matthews correlation of a classifier, with classes, confusions, calibration."""
    from unmask.evaluate.protocols.scores import classification_scores

    keys = {**columns.keys, "long_texts": "window"}
    options.evaluate(data, keys, classification_scores, _show_classes)


COMMANDS = (glue, squad, ner, classify)


def _seeds(seeds: list[str] | None) -> list[int] | None:
    if seeds is None:
        return None
    try:
        return [int(seed) for seed in seeds]
    except ValueError:
        raise InvalidRequest(
            f"--seeds is {','.join(seeds)!r}; give whole numbers separated by commas"
        ) from None


def _show_report(report: "ProtocolReport") -> None:
    """Every column over seeds, the average, and what was chosen."""
    from unmask.evaluate.protocols.report import average_sentence

    screen = console()
    right = ("mean", "standard deviation", "median", "seeds")
    grid = table(None, "metric", *right, f"by seed ({LEVEL} interval)", right=right)
    for task in report.tasks.values():
        for name, column in task.columns.items():
            each = ", ".join(f"{seed}: {column.value(seed)}" for seed in column.values)
            deviation = "" if column.standard_deviation is None else f"{column.standard_deviation:.4f}"
            row = (
                safe(name),
                f"{column.mean:.4f}",
                deviation,
                f"{column.median:.4f}",
                str(len(column.values)),
            )
            grid.add_row(*row, safe(each))
    screen.print(grid)
    if report.average is not None:
        screen.print(safe(average_sentence(report.average)))
    for task in report.tasks.values():
        if task.chosen_by is not None:
            chosen = ", ".join(f"{key} = {value}" for key, value in task.chosen.items())
            screen.print(safe(f"{task.title}: chosen by {task.chosen_by}: {chosen}"))
    for name, why in report.skipped.items():
        screen.print(safe(f"{name} was not run: {why}"))
    screen.print(safe(f"{report.model} by the protocol {report.protocol}. {report.note}"))


def _show_squad(result: "SquadScores") -> None:
    """All questions, those with and without an answer, and the best thresholds."""
    screen = console()
    right = ("exact match", f"{LEVEL} interval", "F1", f"{LEVEL} interval ", "number")
    grid = table(None, "questions", *right, right=right)
    rows = {"all": result, "with an answer": result.has_answer, "without an answer": result.no_answer}
    for name, scores in rows.items():
        if scores is not None:
            exact, overlap = (_between(scores.intervals.get(key), 2) for key in ("exact_match", "f1"))
            row = (f"{scores.exact_match:.2f}", exact, f"{scores.f1:.2f}", overlap, f"{scores.questions:,}")
            grid.add_row(name, *row)
    screen.print(grid)
    if result.threshold is not None:
        screen.print(f"threshold {result.threshold:g}")
    if (best := result.best_threshold) is not None:
        screen.print(
            f"with the best thresholds on the same data: exact match {best.exact_match:.2f} "
            f"({best.exact_match_threshold:.3f}), F1 {best.f1:.2f} ({best.f1_threshold:.3f})"
        )


def _show_entities(result: "EntityScores") -> None:
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


def _show_classes(result: "ClassificationScores") -> None:
    """Every class, the confusions, and all together."""
    screen = console()
    screen.print(_classes("label", result.classes, result.intervals))
    names = [safe(name) for name in result.classes]
    grid = table("gold (rows) and predicted", "", *names, right=tuple(names))
    for name, row in zip(names, result.confusion, strict=True):
        grid.add_row(name, *(f"{count:,}" for count in row))
    screen.print(grid)
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
    grid = table(None, title, *right, right=right)
    for name, scores in classes.items():
        figures = (f"{value:.4f}" for value in (scores.precision, scores.recall, scores.f1))
        between = _between(intervals.get(f"f1[{name}]"), 4)
        grid.add_row(safe(name), *figures, between, f"{scores.gold:,}", f"{scores.predicted:,}")
    return grid


def _between(interval: "Interval | None", places: int) -> str:
    """The ends of an interval; empty if there is none."""
    return "" if interval is None else f"{interval:.{places}f}"


def _with(value: float, interval: "Interval | None") -> str:
    """A figure with its interval in brackets."""
    return f"{value:.4f}" + ("" if interval is None else f" ({_between(interval, 4)})")
