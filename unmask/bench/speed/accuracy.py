"""The accuracy of number formats compared with float32: of embeddings, and of any head on labeled data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.intervals import Interval, percentile_interval, samples
from unmask.base.progress import Progress
from unmask.bench.benchmark_model import (
    BenchmarkModel,
    ModelInfo,
    ScoredPairs,
    invented_lines,
    lines_of,
    spearman,
    sts_b,
)
from unmask.bench.machine import LeftOut, Machine, sentence_of, this_machine
from unmask.errors import AccuracyLoss, InvalidRequest, UnmaskError
from unmask.evaluate.protocols.runs import data_settings
from unmask.evaluate.protocols.scores import prepared_examples
from unmask.models.load import Model, load
from unmask.spec import Classifier
from unmask.tasks.classify import classifier_of, problem_of
from unmask.tasks.logits import WindowedLogits
from unmask.tasks.schemes import Scheme
from unmask.training.finetune.evaluate import judged, read_examples
from unmask.training.finetune.examples import Example, Preparation
from unmask.training.finetune.settings import DataSettings
from unmask.training.finetune.tasks import TASKS, Task


@dataclass(frozen=True)
class Agreement:
    """Agreement of outputs with a reference."""

    largest_difference: float
    cosine_min: float
    """Over rows, which are embeddings of texts or states of tokens."""
    cosine_percentile_1: float
    cosine_mean: float


def agreement(outputs: NDArray[np.float32], reference: NDArray[np.float32]) -> Agreement:
    """Agreement of rows (S, E) with reference rows, computed in float64."""
    left, right = outputs.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return Agreement(
        largest_difference=float(np.abs(left - right).max()),
        cosine_min=float(cosines.min()),
        cosine_percentile_1=float(np.percentile(cosines, 1)),
        cosine_mean=float(cosines.mean()),
    )


@dataclass(frozen=True)
class AccuracyRow:
    """One number format."""

    dtype: str
    agreement: Agreement
    """Agreement of its embeddings with those in float32."""
    sts_b_spearman: float | None
    """Rank correlation of cosines with human similarity scores; None without the data."""


@dataclass(frozen=True)
class AccuracyReport:
    """The result of `measure_accuracy`."""

    protocol: str = field(default="accuracy", init=False)
    measured: ModelInfo
    machine: Machine
    texts: int
    source: str
    """Where the texts come from."""
    rows: tuple[AccuracyRow, ...]
    """The first row is float32, with which the others are compared."""
    left_out: tuple[LeftOut, ...]
    seed: int


def measure_accuracy(
    subject: BenchmarkModel,
    *,
    dtypes: Sequence[str] = ("bfloat16", "float16", "int8"),
    texts: Path | None = None,
    count: int = 1000,
    data: Path | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Embed the same texts in every number format.

    Args:
        subject: the model; random weights say little about accuracy.
        dtypes: number formats to compare with float32.
        texts: a file with one text per line; None uses the sentences of STS-B if ``data`` is given, and
            otherwise invents texts.
        count: use only the first N texts.
        data: the folder of data sets, for STS-B.
        device: a torch device name.
        seed: seed of invented texts.
        progress: called with (formats done, formats in total).

    Raises:
        InvalidRequest: the data are missing, or there is no text.
    """
    pairs = None if data is None else sts_b(data)
    every = ["float32", *(dtype for dtype in dtypes if dtype != "float32")]
    reference = load(subject.folder, device=device)
    chosen, source = _texts(reference, texts, pairs, seed)
    chosen = chosen[:count]
    if not chosen:
        raise InvalidRequest(f"{source} holds no text")
    expected_SE = _embed(reference, subject, chosen)
    rows: list[AccuracyRow] = []
    left_out: list[LeftOut] = []
    for number, dtype in enumerate(every, start=1):
        try:
            model = reference if dtype == "float32" else load(subject.folder, dtype=dtype, device=device)
            found_SE = expected_SE if dtype == "float32" else _embed(model, subject, chosen)
            score = None if pairs is None else _spearman(model, subject, pairs)
            rows.append(AccuracyRow(dtype, agreement(found_SE, expected_SE), score))
        except UnmaskError as error:
            left_out.append(LeftOut(dtype, "", sentence_of(error)))
        if progress is not None:
            progress(number, len(every))
    machine = this_machine(torch.device(device))
    return AccuracyReport(subject.record, machine, len(chosen), source, tuple(rows), tuple(left_out), seed)


def _texts(model: Model, path: Path | None, pairs: ScoredPairs | None, seed: int) -> tuple[list[str], str]:
    if path is not None:
        return lines_of(path), path.name
    if pairs is not None:
        return list(dict.fromkeys((*pairs.left, *pairs.right))), "STS-B"
    return invented_lines(model.tokenizer, seed), "words of the vocabulary"


def _embed(model: Model, subject: BenchmarkModel, texts: Sequence[str]) -> NDArray[np.float32]:
    return model.embed_encodings(model.tokenize(texts, truncation="end"), subject.head)


def _spearman(model: Model, subject: BenchmarkModel, pairs: ScoredPairs) -> float:
    left_SE, right_SE = (
        _embed(model, subject, side).astype(np.float64) for side in (pairs.left, pairs.right)
    )
    lengths = np.linalg.norm(left_SE, axis=1) * np.linalg.norm(right_SE, axis=1)
    return spearman((left_SE * right_SE).sum(1) / lengths, np.array(pairs.scores))


# Any head, on labeled data.

LabeledTask = Literal["classification", "tagging", "answers", "scores"]
"""What a head gives: a label or several of a text or pair, labels of words, answers to questions, numbers."""

DATA_SETS: Mapping[LabeledTask, tuple[str, Mapping[str, Any]]] = {
    "classification": (
        "glue/SST-2/dev.tsv.xz",
        {"text": "sentence", "rename_labels": {"0": "negative", "1": "positive"}},
    ),
    "tagging": ("wikiann_en/test.conll.xz", {"strip_prefix": "en:"}),
    "answers": ("squad_v1.1/dev-v1.1.json.xz", {}),
    "scores": ("glue/STS-B/dev.tsv.xz", {"text": "sentence1", "pair": "sentence2", "label": "score"}),
}
"""The file of each task in a folder of data sets, and its keys of a run file's ``[data]``."""

COUNTED: Mapping[Task, str] = {
    "classification": "labels",
    "multi_label": "sets of labels",
    "tagging": "labels of words",
    "answering": "answers",
    "regression": "orders of two texts",
}
"""What predictions are counted in."""


@dataclass(frozen=True)
class TaskRow:
    """One number format on labeled data."""

    dtype: str
    metric: float
    change: float
    """The metric minus that in float32; below 0 it is worse."""
    change_interval: Interval
    """Of the change, 95 %, from bootstrap samples of the texts, which are the same for both formats."""
    flips: int
    """Predictions that are others than in float32."""
    predictions: int
    """How many there are."""
    largest_logit_difference: float
    """From the logits in float32, over all logits of all texts."""


@dataclass(frozen=True)
class TaskAccuracyReport:
    """The result of `measure_task_accuracy`."""

    protocol: str = field(default="task accuracy", init=False)
    measured: ModelInfo
    adapter: str | None
    machine: Machine
    task: LabeledTask
    metric: str
    """``accuracy``, or ``micro_f1`` of several labels; ``f1`` of entities; ``f1`` of answers, in percent;
    ``spearman`` of numbers."""
    counted: str
    """What flips are: labels, sets of labels, labels of words, answers, or orders of two texts."""
    texts: int
    source: str
    rows: tuple[TaskRow, ...]
    """The first row is float32, with which the others are compared."""
    left_out: tuple[LeftOut, ...]
    seed: int
    card: tuple[str, ...] = field(init=False)
    """For each row after the first a line for a model card."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "card", tuple(_card_line(self, row) for row in self.rows[1:]))


def _card_line(report: TaskAccuracyReport, row: TaskRow) -> str:
    between = f"{row.change_interval.low:+.4f} to {row.change_interval.high:+.4f}"
    return (
        f"{row.dtype} compared with float32 on {report.texts:,} texts of {report.source}: "
        f"{report.metric} {row.metric:.4f}, a change of {row.change:+.4f} ({between}); "
        f"{row.flips:,} of {row.predictions:,} {report.counted} differ; largest difference of a logit "
        f"{row.largest_logit_difference:.2g} (unmask {report.machine.unmask}, {report.machine.processor})"
    )


def labeled_data(task: LabeledTask, path: Path, keys: Mapping[str, Any]) -> DataSettings:
    """How a labeled file is read.

    Args:
        task: decides which file of a folder of data sets is meant.
        path: a labeled file, or a folder of data sets.
        keys: of a run file's ``[data]``, for a file.

    Raises:
        InvalidRequest: the file is missing, or keys are given for a folder.
    """
    named = {name: value for name, value in keys.items() if value is not None}
    if path.is_dir():
        if named:
            raise InvalidRequest(
                f"{next(iter(named))} is given and {path} is a folder of data sets, whose columns are known; "
                "name a file, or leave it out"
            )
        name, known = DATA_SETS[task]
        path, named = path / name, dict(known)
    if task == "answers":
        named["format"] = "squad"
    return data_settings({"long_texts": "window", **named}, path)


@dataclass(frozen=True)
class _Outputs:
    """What a number format gives: logits, predictions, the metric of all texts and of bootstrap samples."""

    logits: Sequence[WindowedLogits]
    predictions: Sequence[Any]
    metric: float
    sampled: NDArray[np.float64]


@dataclass(frozen=True)
class _Examples:
    """Labeled texts as the model's head reads them."""

    task: Task
    preparation: Preparation
    head: Classifier
    examples: Sequence[Example]

    @property
    def metric(self) -> str:
        match self.task:
            case "classification":
                return "accuracy"
            case "multi_label":
                return "micro_f1"
            case "regression":
                return "spearman"
            case "tagging" if not Scheme(self.preparation.labels).has_entities:
                return "accuracy"
            case _:
                return "f1"

    def outputs(self, model: Model) -> _Outputs:
        logits = read_examples(model.engine, TASKS[self.task].role, self.examples)
        predicted = judged(self.head, self.preparation, self.examples, logits)
        sampled = [predicted.scores(chosen)[self.metric] for chosen in samples(len(self.examples))]
        metric = predicted.figures()[self.metric]
        return _Outputs(logits, predicted.predictions, metric, np.array(sampled))

    def row(self, dtype: str, narrow: _Outputs, reference: _Outputs) -> TaskRow:
        flips, predictions = self._flips(narrow.predictions, reference.predictions)
        pairs = zip(narrow.logits, reference.logits, strict=True)
        largest = max(
            float(np.abs(np.subtract(ours, theirs, dtype=np.float64)).max())
            for one, other in pairs
            for ours, theirs in zip(one.logits, other.logits, strict=True)
        )
        change = percentile_interval((narrow.sampled - reference.sampled).tolist())
        metric = narrow.metric
        return TaskRow(dtype, metric, metric - reference.metric, change, flips, predictions, largest)

    def _flips(self, ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[int, int]:
        """Predictions that differ, and all."""
        if self.task == "regression":
            return disorder(np.array(ours), np.array(theirs))
        if self.task == "tagging":
            ours, theirs = ([label for labels in side for label in labels] for side in (ours, theirs))
        return sum(a != b for a, b in zip(ours, theirs, strict=True)), len(theirs)


def disorder(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[int, int]:
    """The pairs of items that two lists of numbers, (S,) each, put in different orders, and all pairs."""
    count = sum(
        int(np.sum(np.sign(ours[i] - ours[i + 1 :]) != np.sign(theirs[i] - theirs[i + 1 :])))
        for i in range(len(ours))
    )
    return count, math.comb(len(ours), 2)


def measure_task_accuracy(
    subject: BenchmarkModel,
    task: LabeledTask,
    data: DataSettings,
    *,
    adapter: str | None = None,
    dtypes: Sequence[str] = ("bfloat16", "float16", "int8"),
    count: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> TaskAccuracyReport:
    """Predict the same labeled texts in every number format.

    Args:
        subject: the model.
        task: what its head gives.
        data: the file as ``dev``; see `labeled_data`.
        adapter: an adapter with the head, as `unmask.load` takes it.
        dtypes: number formats to compare with float32.
        count: use only the first N texts; None uses all.
        device: a torch device name.
        seed: of random weights, for the report.
        progress: called with (formats done, formats in total).

    Raises:
        InvalidRequest: the model has no head for the task.
        InvalidText: a line is damaged, or its label is unknown to the head.
    """
    every = ["float32", *(dtype for dtype in dtypes if dtype != "float32")]
    model = load(subject.folder, device=device, adapter=adapter)
    trained = _task_of(model, task)
    preparation, head, examples, _ = prepared_examples(model, trained, data, Path())
    texts = _Examples(trained, preparation, head, examples[:count])
    rows: list[TaskRow] = []
    left_out: list[LeftOut] = []
    outputs = reference = texts.outputs(model)
    for number, dtype in enumerate(every, start=1):
        try:
            if dtype != "float32":
                outputs = texts.outputs(load(subject.folder, dtype=dtype, device=device, adapter=adapter))
            rows.append(texts.row(dtype, outputs, reference))
        except UnmaskError as error:
            left_out.append(LeftOut(dtype, "", sentence_of(error)))
        if progress is not None:
            progress(number, len(every))
    return TaskAccuracyReport(
        measured=subject.record,
        adapter=adapter,
        machine=this_machine(torch.device(device)),
        task=task,
        metric=texts.metric,
        counted=COUNTED[trained],
        texts=len(texts.examples),
        source=", ".join(Path(name).name for name in data.dev),
        rows=tuple(rows),
        left_out=tuple(left_out),
        seed=seed,
    )


def _task_of(model: Model, task: LabeledTask) -> Task:
    """The task of fine-tuning whose data and figures these are.

    Raises:
        InvalidRequest: the model has no head of this kind.
    """
    if task in ("tagging", "answers"):
        return "tagging" if task == "tagging" else "answering"
    problem = problem_of(classifier_of(model.spec, "sequence", model.name))
    if (problem == "regression") != (task == "scores"):
        gives, other = ("a number", "scores") if problem == "regression" else ("labels", "classification")
        raise InvalidRequest(f"the task is {task} and the head of {model.name} gives {gives}; use {other}")
    if problem == "regression":
        return "regression"
    return "multi_label" if problem == "multi_label_classification" else "classification"


def check_drop(report: AccuracyReport | TaskAccuracyReport, allowed: float) -> None:
    """Refuse a number format that lowers the metric by more than is allowed, or that was not measured.

    Args:
        report: the metric of each number format; of embeddings Spearman's correlation on STS-B.
        allowed: in the metric's unit; a drop of exactly this much is allowed.

    Raises:
        AccuracyLoss: names the first such number format.
    """
    if report.left_out:
        first = report.left_out[0]
        raise AccuracyLoss(f"{first.name} was not measured: {first.reason}")
    if isinstance(report, AccuracyReport):
        name = "Spearman's correlation on STS-B"
        values = {row.dtype: row.sts_b_spearman for row in report.rows}
    else:
        name = report.metric
        values = {row.dtype: row.metric for row in report.rows}
    exact = values["float32"]
    for dtype, value in values.items():
        if exact is None or value is None:
            raise AccuracyLoss(f"{dtype} has no {name} to be compared; name a folder of data sets with STS-B")
        if exact - value > allowed:
            raise AccuracyLoss(
                f"{dtype} lowers {name} by {exact - value:.4f} from {exact:.4f} to {value:.4f}, and "
                f"{allowed:g} is allowed; use another number format, or allow more"
            )
