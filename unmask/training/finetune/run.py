"""From settings to a fine-tuned checkpoint folder: start or resume a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unmask.base.files import replaced_folder
from unmask.base.intervals import Interval
from unmask.base.optional import require
from unmask.encoder.encoder import Encoder
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledBatches
from unmask.training.finetune.calibration import calibrate
from unmask.training.finetune.card import CardFacts, model_card
from unmask.training.finetune.entities import EntityRun
from unmask.training.finetune.evaluate import Predicted, figure_names, gold_labels, intervals, predicted
from unmask.training.finetune.examples import (
    Counts,
    Example,
    check_kinds,
    class_weights,
    labels_of,
    preparation_for,
)
from unmask.training.finetune.few_shot import FewShot, few_texts, figures_before, write_body
from unmask.training.finetune.metrics import Metrics, OwnMetrics, check_metric
from unmask.training.finetune.records import Labeled, ReadingNotes, in_both_orders, read_labeled
from unmask.training.finetune.result import FinetuneResult, labeled_inputs, write_result
from unmask.training.finetune.settings import FinetuneSettings, read_settings, settings_of_table
from unmask.training.finetune.start import (
    body_checkpoint,
    low_rank,
    task_checkpoint,
    task_encoder,
    teacher_of,
)
from unmask.training.finetune.supervised import SupervisedRun, without_dev
from unmask.training.finetune.sweep import SeedsResult, SweepResult, train_seeds, train_sweep
from unmask.training.finetune.tasks import TASKS
from unmask.training.finetune.tested import FinalTest, describe, leakage, one_sided
from unmask.training.objectives.labeled import ContrastiveObjective, LabeledObjective
from unmask.training.retrieval.run import RetrievalRun
from unmask.training.run.base_model import base_model_name, first_checkpoint
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.export import card_of
from unmask.training.run.loop import evaluating
from unmask.training.run.ranks import Ranks
from unmask.training.run.run import locked_folder, read_settings_and_base
from unmask.training.run.trainer_names import OURS, refuse_keywords
from unmask.weights.build import DTYPES
from unmask.weights.write.adapter_export import write_adapter


def finetune(
    settings: FinetuneSettings | Path | str | Mapping[str, Any],
    *,
    base: Path | str | None = None,
    ranks: Ranks | None = None,
    callback: Callback | Callable[[Mapping[str, Any]], object] | None = None,
    metrics: Metrics | None = None,
    test: Any = None,
    **others: Any,
) -> FinetuneResult | SeedsResult | SweepResult:
    """Start or resume a fine-tuning run, or one for each of several ``seeds`` or of the grid of a ``sweep``.

    Args:
        settings: the path of a TOML file, see docs/finetune.md; the same keys as a dictionary; or
            `FinetuneSettings`.
        base: the folder that relative paths in the settings start at; None for the folder of the file, or the
            current one if there is no file.
        ranks: the processes that share the run, see `training.pretrain.joined`; None is this one alone.
        callback: receives what the run tells, in the first process: a function of one mapping, or an object
            with some methods of `unmask.Callback`. None prints it to standard error.
        metrics: a function of predictions and labels of the dev data, whose figures are beside those of the
            task and can be ``evaluation.metric``; see docs/finetune.md.
        test: a file, relative to the current folder, or rows in memory, whose texts are predicted in the
            end; predictions and, where it has labels, figures are written beside the run.
        others: refused; a name of transformers' Trainer with ours.

    Raises:
        InvalidRequest: the settings or another argument are invalid, or the settings differ from those of
            the run being resumed.
        InvalidText: a line of the data is damaged, or its label is not of the task.
        OutputError: another process is running this run, or the disk is full or read-only.
        NonFiniteResult: the loss or a gradient is not finite.
        Stopped: SIGINT or SIGTERM was received; a checkpoint of the last complete step is written.
    """
    refuse_keywords("unmask.finetune", others, OURS)
    settings, base = read_settings_and_base(settings, base, read_settings, settings_of_table)
    ranks = (ranks or Ranks()).on(settings.device)
    if settings.micro_batches % ranks.world:
        raise InvalidRequest(
            f"micro_batches is {settings.micro_batches}; it must be a multiple of the {ranks.world} processes"
        )
    own_metrics = None if metrics is None else OwnMetrics(metrics)
    if own_metrics is not None and settings.task == "retrieval":
        raise InvalidRequest("metrics is for tasks with labels, and the task is retrieval; leave it out")
    if settings.entities is not None and (own_metrics is not None or test is not None):
        raise InvalidRequest(
            "metrics and test are for labels that the head has, and [entities] reads labels as texts; leave "
            "both out, and give data.dev"
        )

    def train(trial: FinetuneSettings, out: Path) -> FinetuneResult:
        with locked_folder(out, ranks):
            run: SupervisedRun
            if trial.task == "retrieval":
                run = RetrievalRun(trial, base, out, ranks, listening)
            elif trial.entities is not None:
                run = EntityRun(trial, base, out, ranks, listening)
            else:
                run = FinetuneRun(
                    trial, base, out, ranks, listening, own_metrics=own_metrics, final_test=final_test
                )
            result = run.train()
            if ranks.first:
                write_result(result, trial, out, run.loop.inputs)
                if final_test is not None:
                    result = final_test.of_run(result, trial, listening)
            listening.end(result)
            return result

    def train_all(trial: FinetuneSettings, out: Path) -> FinetuneResult | SeedsResult:
        return (
            train_seeds(trial, out, ranks, listening, train, base=base) if trial.seeds else train(trial, out)
        )

    with listener(callback, first=ranks.first) as listening:
        final_test = None if test is None or not ranks.first else FinalTest(test, settings)
        result: FinetuneResult | SeedsResult | SweepResult
        if settings.sweep:
            result = train_sweep(settings, base, ranks, listening, train_all)
        else:
            result = train_all(settings, base / settings.out)
        return result if final_test is None else final_test.of(result, settings, listening)


class FinetuneRun(SupervisedRun):
    """A run on labeled records, see `SupervisedRun`.

    Args:
        settings: settings of the run.
        base: the folder that paths in the settings are relative to.
        out: the run's folder.
        ranks: the processes of the run.
        callback: receives progress.
        own_metrics: figures of the user.
        final_test: texts that are predicted in the end, which are checked before training.
    """

    objective: LabeledObjective | ContrastiveObjective
    dev: list[Example]

    def __init__(
        self,
        settings: FinetuneSettings,
        base: Path,
        out: Path,
        ranks: Ranks,
        callback: Callback,
        *,
        own_metrics: OwnMetrics | None = None,
        final_test: FinalTest | None = None,
    ) -> None:
        self.own_metrics, self.final_test = own_metrics, final_test
        self.few_shot: FewShot | None = None
        self.unit = "text" if settings.few_shot is None else "pair"
        self.evaluates_at_start = settings.few_shot is not None
        self.newest: Predicted | None = None
        """What the last evaluation predicted for the dev data."""
        super().__init__(settings, base, out, ranks, callback)

    def build(self, *, resumed: bool) -> LabeledObjective | ContrastiveObjective:
        """Records, labels, examples, the checkpoint with a head, and the objective."""
        settings = self.settings
        if settings.data.dev:
            require("finetune")
        self.records = records = self._records(settings.data.train)
        labels = labels_of(records, settings)
        figures = figure_names(settings.task, labels)
        if self.own_metrics is None:
            check_metric(settings.evaluation.metric, figures)
        if settings.few_shot is not None:
            require("finetune")
            records = few_texts(records, labels, settings)
        if settings.data.both_orders:
            records = in_both_orders(records)
        self.base_checkpoint = first_checkpoint(settings, self.base)
        self.checkpoint = task_checkpoint(settings, self.base_checkpoint, labels)
        encoder = task_encoder(
            settings, self.checkpoint, self.base_checkpoint, self.callback.say, weights=not resumed
        )
        self.preparation = preparation_for(settings, labels, self.checkpoint, encoder.spec)
        if self.final_test is not None:
            self.final_test.examples(self.preparation)
        self.dev_records = self._records(settings.data.dev) if settings.data.dev else []
        train = self._examples("train", records)
        self.dev = self._examples("dev", self.dev_records) if settings.data.dev else []
        if (repeated := leakage(train, self.dev)) is not None:
            self.describe([repeated])
        if self.own_metrics is not None:
            golds = gold_labels(self.preparation, self.dev)
            more = self.own_metrics.names(settings.task, golds, figures) if self.dev else ()
            check_metric(settings.evaluation.metric, (*figures, *more))
        items = self.preparation.items(train)
        if settings.few_shot is not None:
            self.few_shot = FewShot(settings, encoder, self.checkpoint, train, items)
            self.describe([self.few_shot.described()])
        self.training = LabeledBatches(
            self.few_shot.pairs if self.few_shot else items,
            batch_size=settings.batch_size,
            micro_batches=settings.micro_batches,
            seed=settings.seed,
        )
        self.objective = self.few_shot.objective if self.few_shot else self._objective(encoder)
        return self.objective

    def inputs(self) -> Mapping[str, str]:
        """The records and the first checkpoint."""
        return labeled_inputs(self.settings, self.base, self.records, self.dev_records)

    def dev_figures(self) -> dict[str, float]:
        """Those of the task, and of the user; a head of few-shot learning is fitted before."""
        if self.few_shot:
            self.few_shot.fit_head()
        self.newest = self._predicted()
        figures = self.newest.figures()
        if self.own_metrics is not None:
            figures |= self.own_metrics.figures(self.newest.predictions, self.newest.labels)
        return figures

    def finish_best(self, figures: Mapping[str, float], step: int) -> FinetuneResult:
        """Also fit a head, calibrate, and write the adapter or the encoder alone, if the settings say so."""
        settings, loop = self.settings, self.loop
        if self.few_shot:
            self.callback.say(self.few_shot.fit_head())
        if (sentence := self._one_sided()) is not None:
            self.describe([sentence])
        if settings.evaluation.calibrate:
            with evaluating(self.objective):
                calibrated = calibrate(self.encoder, self.dev, self.callback.say)
            figures = {**figures, **{f"dev/{name}": value for name, value in calibrated.items()}}
        between = self._intervals()
        facts = self._facts(step, figures, between)
        folder = self.export(figures, None if facts is None else model_card(facts))
        adapter = None if settings.adapter is None else self.out / "adapter"
        if adapter is not None and self.ranks.first:
            self._write_adapter(adapter, None if facts is None else model_card(facts, adapter=True))
        body, before = None, {}
        if self.few_shot:
            body, before = folder / "encoder", figures_before(self.out / "log.jsonl")
            if self.ranks.first:
                write_body(folder, body_checkpoint(settings, self.base_checkpoint), body)
        intervals = {f"dev/{name}": interval for name, interval in between.items()}
        dev = before | dict(figures)
        return FinetuneResult(settings.name, folder, loop.step, step, dev, adapter, body, intervals)

    def _intervals(self) -> Mapping[str, Interval]:
        """Those of the figures on the dev data, in the first process."""
        if not self.dev or not self.ranks.first:
            return {}
        changed = self.few_shot is not None or self.settings.evaluation.calibrate
        # A run that was stopped after its last evaluation has evaluated nothing in this process.
        newest = self._predicted() if changed or self.newest is None else self.newest
        return intervals(newest.scores, len(self.dev), self.settings.task)

    def _facts(
        self, step: int, figures: Mapping[str, float], between: Mapping[str, Interval]
    ) -> CardFacts | None:
        """What the card that the run writes says, in the first process, unless a file is named."""
        settings = self.settings
        if settings.card is not None or not self.ranks.first:
            return None
        return CardFacts(
            settings,
            base_model_name(settings.model.start_from, self.base),
            self.preparation.labels,
            self.described,
            self.loop.step,
            step,
            without_dev(figures),
            between,
        )

    def _records(self, names: tuple[str, ...]) -> list[Labeled]:
        notes = ReadingNotes()
        records = list(read_labeled(names, self.settings.data, self.base, notes))
        self.describe(notes.sentences())
        check_kinds(records, self.settings.task)
        return records

    def _examples(self, name: str, records: list[Labeled]) -> list[Example]:
        counts = Counts()
        examples = self.preparation.examples(records, counts)
        if name == "train":
            self.counts = counts
        self.describe(describe(name, counts, examples))
        return examples

    def _objective(self, encoder: Encoder) -> LabeledObjective:
        settings = self.settings
        return LabeledObjective(
            encoder,
            TASKS[settings.task].role,
            TASKS[settings.task].problem or "single_label_classification",
            class_weights=class_weights(settings, self.preparation.labels, self.counts),
            label_smoothing=settings.label_smoothing,
            r_drop=settings.r_drop,
            sift=settings.sift,
            soft_labels=settings.soft_labels,
            teacher=teacher_of(settings, self.base, self.checkpoint),
        )

    def _predicted(self) -> Predicted:
        with evaluating(self.objective):
            return predicted(TorchEngine(self.encoder), self.preparation, self.dev)

    def _one_sided(self) -> str | None:
        """A sentence about the weights that are exported, if they predict the same for every dev text."""
        if not self.dev:
            return None
        newest = self.newest or self._predicted()  # a run that was finished before has evaluated nothing
        return one_sided(self.settings.task, newest.predictions, newest.labels)

    def _write_adapter(self, folder: Path, written_card: str | None) -> None:
        settings = self.settings
        assert settings.adapter is not None
        with replaced_folder(folder) as partial:
            write_adapter(
                self.encoder,
                self.checkpoint,
                TASKS[settings.task].role,
                partial,
                name=settings.name,
                base=self.base_checkpoint,
                how=low_rank(settings),
                card=card_of(settings, self.base, written_card),
                dtype=DTYPES[settings.adapter.dtype],
            )
