"""The texts of a test file predicted by the model of a finished run, with figures where they have labels.

Also sentences about labeled data and about predictions, which figures alone do not say.
"""

import glob
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from unmask.base.files import whole_file
from unmask.base.progress import counted
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.tasks.classify import classifier_of, label_names
from unmask.tasks.schemes import Scheme
from unmask.text.memory import Rows, tables_in_memory
from unmask.training.finetune.evaluate import intervals, predicted
from unmask.training.finetune.examples import Counts, Example, Preparation, check_kinds, preparation_for
from unmask.training.finetune.grid import with_values
from unmask.training.finetune.records import Gold, Labeled, read_labeled
from unmask.training.finetune.result import FinetuneResult, write_json, written_intervals
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.sweep import SeedsResult, SweepResult
from unmask.training.finetune.tasks import TASKS, Task
from unmask.training.run.callbacks import Callback
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

PREDICTIONS, FIGURES = "test.jsonl", "test.json"
"""The files in a run's folder: a line for each text, and the figures."""

HIDDEN = (-1, "-1")
"""What public test files have as labels that are not public."""


class FinalTest:
    """A labeled or unlabeled file that is predicted when a run is finished.

    Args:
        test: the file, relative to the current folder; or rows in memory, as ``data.train`` takes them.
        settings: of the run, whose columns and layout it has.

    Raises:
        InvalidRequest: the task has no labels, or the file cannot be read.
        InvalidText: a line is damaged.
    """

    def __init__(self, test: object, settings: FinetuneSettings) -> None:
        if settings.task == "retrieval":
            raise InvalidRequest(
                "a test file is for tasks with labels, and the task is retrieval; measure the model with "
                "unmask evaluate retrieval"
            )
        sources = tables_in_memory(test, "test")
        names = [sources] if isinstance(sources, str) else list(sources) if isinstance(sources, tuple) else []
        for name in names:
            if not isinstance(name, Rows) and not glob.glob(str(name)):
                raise InvalidRequest(
                    f"the test file {name} does not exist; name a file in the layout of data.train"
                )
        self.source = ", ".join(str(name) if isinstance(name, Rows) else Path(name).name for name in names)
        records = list(read_labeled(names, settings.data, Path(), labeled=False))
        if not records:
            raise InvalidText(f"{self.source} has no text; name a file with at least one")
        self.labeled = not all(_unlabeled(record, settings.task) for record in records)
        if self.labeled:
            check_kinds(records, settings.task)
        self.records = records

    def of(
        self,
        result: FinetuneResult | SeedsResult | SweepResult,
        settings: FinetuneSettings,
        callback: Callback,
    ) -> FinetuneResult | SeedsResult | SweepResult:
        """The result with predictions of every run that has none."""
        if isinstance(result, SweepResult):
            trials = [
                replace(trial, run=self._of(trial.run, with_values(settings, trial.values), callback))
                for trial in result.trials
            ]
            return replace(result, trials=tuple(trials))
        return self._of(result, settings, callback)

    def _of(
        self, result: FinetuneResult | SeedsResult, settings: FinetuneSettings, callback: Callback
    ) -> FinetuneResult | SeedsResult:
        runs = result.runs if isinstance(result, SeedsResult) else {0: result}
        results = {
            seed: run if run.predictions is not None else self.of_run(run, settings, callback)
            for seed, run in runs.items()
        }
        return replace(result, runs=results) if isinstance(result, SeedsResult) else results[0]

    def of_run(
        self, result: FinetuneResult, settings: FinetuneSettings, callback: Callback
    ) -> FinetuneResult:
        """Predict the file, and write predictions and figures into the folder of the run.

        Raises:
            InvalidText: a label is none of the model's.
            OutputError: the disk is full or read-only.
        """
        checkpoint = read_checkpoint(Source(result.folder, result.name))
        head = classifier_of(checkpoint.spec, TASKS[settings.task].role, checkpoint.source.name)
        labels = label_names(head) if TASKS[settings.task].has_labels else ()
        preparation = preparation_for(settings, labels, checkpoint, checkpoint.spec)
        examples = self.examples(preparation)
        outcome = predicted(TorchEngine(build(checkpoint).eval()), preparation, examples)
        out = result.folder.parent
        predictions = out / PREDICTIONS
        with whole_file(predictions) as partial, partial.open("w", encoding="utf-8", newline="\n") as lines:
            for example, row in zip(examples, outcome.lines(), strict=True):
                lines.write(json.dumps(_input(example.record) | row, ensure_ascii=False) + "\n")
        callback.say(f"test: {counted(len(examples), 'text')} of {self.source} predicted: {predictions}")
        if not self.labeled:
            (out / FIGURES).unlink(missing_ok=True)  # of another file
            return replace(result, predictions=predictions)
        figures, between = (
            outcome.figures(),
            intervals(outcome.scores, len(examples), settings.task),
        )
        table = {"file": self.source, "texts": len(examples), "test": figures}
        write_json(out / FIGURES, table | {"intervals": written_intervals(between)})
        if (sentence := one_sided(settings.task, outcome.predictions, outcome.labels, "test")) is not None:
            callback.say(sentence)
        return replace(
            result,
            predictions=predictions,
            test={f"test/{name}": value for name, value in figures.items()},
            test_intervals={f"test/{name}": interval for name, interval in between.items()},
        )

    def examples(self, preparation: Preparation) -> list[Example]:
        """The texts as a run reads them; called before it trains, because they may be refused.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidText: a label is none of the model's.
        """
        records = self.records
        if not self.labeled:
            records = [_with_some_label(record, preparation.task, preparation.labels) for record in records]
        return preparation.examples(records, Counts())


def _unlabeled(record: Labeled, task: Task) -> bool:
    label = record.label
    missing = label is None or label == "" or (isinstance(label, float) and math.isnan(label))
    return missing or (task != "regression" and isinstance(label, int | str) and label in HIDDEN)


def _with_some_label(record: Labeled, task: Task, labels: Sequence[str]) -> Labeled:
    """The record with any label of the task's kind, which nothing is compared with."""
    match task:
        case "classification":
            label: Any = labels[0]
        case "multi_label":
            label = []
        case "regression" | "multiple_choice":
            label = 0
        case "tagging":
            label = [labels[0]] * (len(record.text) if isinstance(record.text, tuple) else 0)
        case "answering":
            label = Gold(record.label.id if isinstance(record.label, Gold) else "", ())
        case "retrieval":
            raise ValueError("documents have no labels")
        case _:
            assert_never(task)
    return replace(record, label=label)


def _input(record: Labeled) -> dict[str, Any]:
    """What a line repeats of the file, by which it is known again."""
    if isinstance(record.label, Gold):
        return {"id": record.label.id, "question": record.text, "context": record.pair}
    row: dict[str, Any] = {"text": list(record.text) if isinstance(record.text, tuple) else record.text}
    return row if record.pair is None else row | {"pair": record.pair}


def describe(name: str, counts: Counts, texts: Sequence[Example]) -> list[str]:
    """Sentences about labeled data: sizes, labels, truncation, duplicates."""
    sentences = [
        f"{name}: {counted(counts.texts, 'text')} of {counts.tokens / max(1, counts.texts):.0f} tokens on "
        f"average, the longest {counts.longest:,}"
    ]
    if counts.labels:
        total = sum(counts.labels.values())
        shares = ", ".join(
            f"{label!r} {count:,} ({count / total:.1%})" for label, count in counts.labels.most_common(12)
        )
        more = f" and {len(counts.labels) - 12} more" if len(counts.labels) > 12 else ""
        sentences.append(f"{name}: labels {shares}{more}")
    if counts.unanswered:
        has = "has" if counts.unanswered == 1 else "have"
        sentences.append(f"{name}: {counted(counts.unanswered, 'question')} {has} no answer")
    if counts.truncated:
        sentences.append(
            f"{name}: the end of {counted(counts.truncated, 'text')} is dropped, "
            f"{counted(counts.truncated_tokens, 'token')} in all"
        )
    if counts.windowed:
        are = "is" if counts.windowed == 1 else "are"
        sentences.append(f"{name}: {counted(counts.windowed, 'text')} {are} read in several windows")
    seen = Counter(map(_text_of, texts))
    twice = sum(count - 1 for count in seen.values())
    if twice:
        repeat = "repeats" if twice == 1 else "repeat"
        sentences.append(f"{name}: {counted(twice, 'text')} {repeat} another")
    return sentences


def leakage(train: Sequence[Example], dev: Sequence[Example]) -> str | None:
    """A sentence about dev texts that are also trained on; None if there are none."""
    seen = set(map(_text_of, train))
    shared = sum(_text_of(example) in seen for example in dev)
    if not shared:
        return None
    return f"dev: {shared:,} of {counted(len(dev), 'text')} {'is' if shared == 1 else 'are'} also trained on"


def _text_of(example: Example) -> Any:
    """What makes two examples the same text."""
    return example.record.text, example.record.pair, example.record.choices


REMEDY = "train for more steps or with a higher learning rate, or look at how often each label occurs"


def one_sided(
    task: Task, predictions: Sequence[Any], labels: Sequence[Any], where: str = "dev"
) -> str | None:
    """A sentence about a model that predicts no label for anything, or one label for everything, where the
    gold labels differ; None for any other model.

    Args:
        task: what is predicted.
        predictions: see `unmask.training.finetune.metrics.Metrics`.
        labels: the gold ones.
        where: the data.
    """
    if not predictions or task in ("regression", "retrieval"):
        return None
    predicted: set[Any] = set()
    gold: set[Any] = set()
    for prediction, right in zip(predictions, labels, strict=True):
        predicted.update(prediction if task == "tagging" else [prediction])
        gold.update(right if task == "tagging" else [right])
    if task == "answering":
        gold = {""} if not any(labels) else gold
    if len(predicted) != 1 or gold == predicted:
        return None
    (only,) = predicted
    what = counted(len(predictions), TASKS[task].unit)
    if task == "multi_label" and not only:
        return f"{where}: the model predicts no label for any of {what}; {REMEDY}"
    if task == "answering":
        return None if only else f"{where}: the model gives no answer to any of {what}; {REMEDY}"
    if task == "tagging" and only == "O" and Scheme(tuple(sorted(gold))).has_entities:
        return f"{where}: the model predicts no entity in any of {what}; {REMEDY}"
    name = ", ".join(only) if isinstance(only, tuple) else only
    each = "every word" if task == "tagging" else "each"
    return f"{where}: the model predicts {quoted(name)} for {each} of {what}; {REMEDY}"
