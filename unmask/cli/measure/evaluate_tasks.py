"""``unmask evaluate glue``, ``squad``, ``ner`` and ``classify``: protocols by name, models with a head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unmask.cli.measure.evaluate_tables import show_classes, show_entities, show_report, show_squad
from unmask.cli.options import (
    OUTPUT,
    RUN,
    JsonOption,
    ModelOption,
    OutputOptions,
    RunOptions,
    listed,
    set_threads,
)
from unmask.cli.output import print_json, progress
from unmask.cli.tasks.predict import OverlapOption
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.evaluate.protocols.scores import ClassificationScores, EntityScores
    from unmask.evaluate.protocols.squad import SquadScores
    from unmask.models.load import Model
    from unmask.training.finetune.data_settings import DataSettings

TrainDevice = Annotated[
    Literal["auto", "cpu", "cuda"], Parameter(name="--device", help="where to train and score")
]
SeedsOption = Annotated[list[str] | None, listed("seeds; default: those of the protocol", "--seeds")]
RenameOption = Annotated[
    str | None,
    Parameter(
        name="--rename-labels",
        help="what the model calls labels of the file: OLD=NEW, separated by commas",
    ),
]
MaxTokensOption = Annotated[
    int | None,
    Parameter(name="--max-tokens", help="the longest window; default: what the model reads"),
]


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
        given = {"--train": self.train, "--dev": self.dev, "--seeds": self.seeds, "--runs": self.runs}
        if self.protocol is None:
            if some := [name for name, value in given.items() if value is not None]:
                raise InvalidRequest(f"{some[0]} is given without --protocol; name the protocol too")
            return False
        if missing := [name for name in ("--train", "--runs") if given[name] is None]:
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

    found = read_protocol(protocol, "glue")
    set_threads(threads)
    numbers = _seeds(seeds)
    from unmask.evaluate.protocols.glue import evaluate_glue
    from unmask.training.run.callbacks import ProgressPrinter

    teller = ProgressPrinter()
    try:
        report = evaluate_glue(
            model,
            found,
            data,
            output,
            tasks=tasks,
            seeds=numbers,
            intermediate=intermediate,
            device=device,
            keep_models=keep_models,
            callback=teller,
        )
    finally:
        teller.close()
    if json:
        print_json(report)
    else:
        show_report(report)


def squad(
    *,
    model: ModelOption = "default",
    data: Annotated[Path, Parameter(help="a file in SQuAD's layout, version 1.1 or 2.0")],
    run: RunOptions = RUN,
    threshold: Annotated[
        float,
        Parameter(help="version 2.0: no answer if its score is above the best answer's by more than this"),
    ] = 0.0,
    max_answer_tokens: Annotated[int, Parameter(help="the longest answer, in tokens")] = 30,
    max_tokens: MaxTokensOption = None,
    overlap_tokens: OverlapOption = None,
    train: TrainOptions = TRAIN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Exact match and F1 of answers by SQuAD's official rules, in percent.

    For version 2.0 the scores with a fixed threshold, of questions with and without an answer, and separately
    those with the threshold that is best on the same data.
    """
    from unmask.evaluate.protocols.squad import squad_scores

    def score(loaded: "Model", data: "DataSettings") -> "SquadScores":
        with progress("Reading windows", 0) as report:
            return squad_scores(
                loaded, data, threshold=threshold, max_answer_tokens=max_answer_tokens, progress=report
            )

    keys = {"format": "squad", "max_tokens": max_tokens, "overlap_tokens": overlap_tokens}
    _Evaluation(
        model=model,
        data=data,
        keys=keys,
        run=run,
        output=output,
        score=score,
        show=show_squad,
        default_adapter="answers",
    ).trained("squad", train)


def ner(
    *,
    model: ModelOption = "default",
    data: Annotated[Path, Parameter(help="a CoNLL file: a word and its label per line")],
    run: RunOptions = RUN,
    rename_labels: RenameOption = None,
    max_tokens: MaxTokensOption = None,
    overlap_tokens: OverlapOption = None,
    train: TrainOptions = TRAIN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Precision, recall and F1 of entities, of each type and over all, as seqeval's default mode has them."""
    from unmask.evaluate.protocols.scores import entity_scores

    def score(loaded: "Model", data: "DataSettings") -> "EntityScores":
        with progress("Reading sentences", 0) as report:
            return entity_scores(loaded, data, progress=report)

    keys = {
        "long_texts": "window",
        "rename_labels": _renamed(rename_labels),
        "max_tokens": max_tokens,
        "overlap_tokens": overlap_tokens,
    }
    _Evaluation(
        model=model,
        data=data,
        keys=keys,
        run=run,
        output=output,
        score=score,
        show=show_entities,
        default_adapter="names",
    ).trained("ner", train)


def classify(
    *,
    model: ModelOption = "default",
    data: Annotated[Path, Parameter(help="a table with a text and its label per row")],
    run: RunOptions = RUN,
    text: Annotated[str, Parameter(help="the column of the text")] = "text",
    pair: Annotated[str | None, Parameter(help="the column of the second text of a pair")] = None,
    label: Annotated[str, Parameter(help="the column of the label")] = "label",
    columns: Annotated[
        str | None, Parameter(help="names of the columns of a file without a header, separated by commas")
    ] = None,
    rename_labels: RenameOption = None,
    max_tokens: MaxTokensOption = None,
    overlap_tokens: OverlapOption = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Accuracy, macro F1, Matthews correlation of a classifier, with classes, confusions, calibration."""
    from unmask.evaluate.protocols.scores import classification_scores

    def score(loaded: "Model", data: "DataSettings") -> "ClassificationScores":
        with progress("Reading texts", 0) as report:
            return classification_scores(loaded, data, progress=report)

    keys = {
        "text": text,
        "pair": pair,
        "label": label,
        "columns": columns.split(",") if columns else None,
        "long_texts": "window",
        "rename_labels": _renamed(rename_labels),
        "max_tokens": max_tokens,
        "overlap_tokens": overlap_tokens,
    }
    _Evaluation(
        model=model,
        data=data,
        keys=keys,
        run=run,
        output=output,
        score=score,
        show=show_classes,
    ).plain()


COMMANDS = (glue, squad, ner, classify)


@dataclass(frozen=True, kw_only=True)
class _Evaluation:
    """What the commands that score a model on a file share."""

    model: str
    data: Path
    keys: Mapping[str, Any]
    """Keys of a run file's ``[data]``; None where the user gave nothing."""
    run: RunOptions
    output: OutputOptions
    score: Callable[["Model", "DataSettings"], Any]
    show: Callable[[Any], None]
    default_adapter: str | None = None
    """The adapter of the model "default" if none is named, as in the command that predicts."""

    def plain(self) -> None:
        """Score the model."""
        from unmask.evaluate.protocols.protocol_runs import data_settings

        self.output.check()
        loaded = self.run.load(self.model, self.default_adapter)
        result = self.score(loaded, data_settings(self.keys, self.data))
        self.output.write(result)
        if not self.output.printed(result):
            self.show(result)

    def trained(self, kind: Literal["squad", "ner"], train: TrainOptions) -> None:
        """Score the model, or fine-tune it first with every seed and score each."""
        if not train.check():
            self.plain()
            return
        from unmask.evaluate.protocols.protocols import merged, read_protocol

        self.output.check()
        for option in ("adapter", "revision", "kernel"):
            if getattr(self.run, option) is not None:
                raise InvalidRequest(
                    f"--{option} is given with --protocol, which trains all weights; leave it out"
                )
        protocol = read_protocol(train.protocol or "", kind)
        numbers = _seeds(train.seeds)
        set_threads(self.run.threads)
        from unmask.evaluate.protocols.protocol_runs import data_settings
        from unmask.evaluate.protocols.trained import evaluate_trained
        from unmask.training.run.callbacks import ProgressPrinter

        given = {key: value for key, value in self.keys.items() if value is not None}
        data = data_settings(merged(protocol.run.get("data", {}), given), self.data)
        trained = self.run.of_another_model()
        teller = ProgressPrinter()
        try:
            report = evaluate_trained(
                self.model,
                protocol,
                train.train or Path(),
                train.runs or Path(),
                lambda folder: self.score(trained.load(str(folder)), data),
                dev=train.dev,
                seeds=numbers,
                ignore_tensors=self.run.ignore_tensor or (),
                device="cuda" if self.run.device.startswith("cuda") else "cpu",
                callback=teller,
            )
        finally:
            teller.close()
        self.output.write(report)
        if not self.output.printed(report):
            show_report(report)


def _seeds(given: list[str] | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return [int(one) for one in given]
    except ValueError:
        raise InvalidRequest(
            f"--seeds is {','.join(given)!r}; give whole numbers separated by commas"
        ) from None


def _renamed(given: str | None) -> dict[str, str] | None:
    """The new name of each old one."""
    if given is None:
        return None
    pairs = [one.partition("=") for one in given.split(",")]
    if not all(old and sign and new for old, sign, new in pairs):
        raise InvalidRequest(f"--rename-labels is {given!r}; write OLD=NEW, separated by commas")
    return {old: new for old, _, new in pairs}
