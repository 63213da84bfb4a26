"""From settings to a fine-tuned checkpoint folder: start or resume a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.base.files import replaced_folder
from unmask.base.intervals import Interval
from unmask.base.optional import require
from unmask.encoder.encoder import Encoder
from unmask.encoder.trained_linear import train_with_onednn
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledBatches
from unmask.training.finetune.best import BestModel, check_metric
from unmask.training.finetune.calibration import calibrate
from unmask.training.finetune.card import CardFacts, model_card
from unmask.training.finetune.described import describe, leakage
from unmask.training.finetune.evaluate import Predicted, figure_names, gold_labels, predicted
from unmask.training.finetune.examples import (
    Counts,
    Example,
    Preparation,
    check_kinds,
    class_weights,
    labels_of,
)
from unmask.training.finetune.few_shot import FewShot, few_texts, figures_before, write_body
from unmask.training.finetune.inputs import labeled_inputs
from unmask.training.finetune.intervals import intervals
from unmask.training.finetune.one_sided import one_sided
from unmask.training.finetune.own_metrics import Metrics, OwnMetrics
from unmask.training.finetune.parts import new_loop, newest_checkpoint, planned
from unmask.training.finetune.records import Labeled, ReadingNotes, in_both_orders, read_labeled
from unmask.training.finetune.result import FinetuneResult, write_result
from unmask.training.finetune.seeds import SeedsResult, train_seeds
from unmask.training.finetune.settings import FinetuneSettings, read_settings, settings_of_table
from unmask.training.finetune.start import (
    base_model,
    body_checkpoint,
    first_checkpoint,
    low_rank,
    task_checkpoint,
    task_encoder,
)
from unmask.training.finetune.sweep import SweepResult, train_sweep
from unmask.training.finetune.tasks import TASKS
from unmask.training.finetune.tested import FinalTest
from unmask.training.finetune.trainer_names import OURS
from unmask.training.objectives.contrastive import ContrastiveObjective
from unmask.training.objectives.labeled import LabeledObjective
from unmask.training.pretrain.export import card_of, export, write_model
from unmask.training.pretrain.run import exclusive_lock
from unmask.training.pretrain.start import choose_device
from unmask.training.retrieval.run import RetrievalRun
from unmask.training.run.callbacks import Callback
from unmask.training.run.listeners import listener
from unmask.training.run.loop import Loop, evaluating
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import EvaluationSettings
from unmask.training.run.trainer import Trainer
from unmask.training.run.trainer_names import refuse_keywords
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import DTYPES, build
from unmask.weights.write.adapter_export import write_adapter

TRAINED = "trained.safetensors"
"""The best weights of an adapter, by our names."""


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
    if isinstance(settings, Path | str):
        base = Path(settings).parent if base is None else base
        settings = read_settings(Path(settings))
    elif isinstance(settings, Mapping):
        settings = settings_of_table(settings)
    base = Path() if base is None else Path(base)
    ranks = ranks or Ranks()
    ranks = replace(ranks, device=choose_device(settings.device, ranks.local))
    if settings.micro_batches % ranks.world:
        raise InvalidRequest(
            f"micro_batches is {settings.micro_batches}; it must be a multiple of the {ranks.world} processes"
        )
    own = None if metrics is None else OwnMetrics(metrics)
    if own is not None and settings.task == "retrieval":
        raise InvalidRequest("metrics is for tasks with labels, and the task is retrieval; leave it out")

    def train(one: FinetuneSettings, out: Path) -> FinetuneResult:
        with exclusive_lock(out) if ranks.first else nullcontext():
            run: RetrievalRun | FinetuneRun
            if one.task == "retrieval":
                run = RetrievalRun(one, base, out, ranks, told)
            else:
                run = FinetuneRun(one, base, out, ranks, told, own=own)
            result = run.train()
            if ranks.first:
                write_result(result, one, out, run.loop.inputs)
                if tested is not None:
                    result = tested.of_run(result, one, told)
            told.end(result)
            return result

    def train_all(one: FinetuneSettings, out: Path) -> FinetuneResult | SeedsResult:
        return train_seeds(one, out, ranks, told, train, base=base) if one.seeds else train(one, out)

    with listener(callback, first=ranks.first) as told:
        tested = None if test is None or not ranks.first else FinalTest(test, settings)
        result: FinetuneResult | SeedsResult | SweepResult
        if settings.sweep:
            result = train_sweep(settings, base, ranks, told, train_all)
        else:
            result = train_all(settings, base / settings.out)
        return result if tested is None else tested.of(result, settings, told)


class FinetuneRun:
    """A run with its parts, at its newest intact checkpoint.

    Args:
        settings: settings of the run.
        base: the folder that paths in the settings are relative to.
        out: the run's folder.
        ranks: the processes of the run.
        callback: receives progress.
        own: figures of the user's own.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        base: Path,
        out: Path,
        ranks: Ranks,
        callback: Callback,
        *,
        own: OwnMetrics | None = None,
    ) -> None:
        self.settings, self.out, self.base = settings, out, base
        self.ranks, self.callback, self.own = ranks, callback, own
        self.newest: Predicted | None = None
        """What the last evaluation predicted for the dev data."""
        self.described: list[str] = []
        """What was said about the data."""
        found = newest_checkpoint(settings, base, out, ranks, callback)
        if settings.data.dev:
            require("finetune")
        records = given = self._records(settings.data.train)
        labels = labels_of(records, settings)
        figures = figure_names(settings.task, labels)
        if own is None:
            check_metric(settings.evaluation.metric, figures)
        if settings.few_shot is not None:
            require("finetune")
            records = few_texts(records, labels, settings)
        if settings.data.both_orders:
            records = in_both_orders(records)
        begun = self.begun = first_checkpoint(settings, base)
        self.checkpoint = task_checkpoint(settings, begun, labels)
        encoder = task_encoder(settings, self.checkpoint, begun, callback.say, weights=found is None)
        limits = [one for one in (settings.data.max_tokens, self.checkpoint.max_tokens) if one is not None]
        self.preparation = Preparation(
            settings, labels, self.checkpoint.tokenizer, encoder.spec, min(limits, default=None)
        )
        held_out = self._records(settings.data.dev) if settings.data.dev else []
        train = self._examples("train", records)
        dev = self._examples("dev", held_out) if settings.data.dev else []
        if (shared := leakage(train, dev)) is not None:
            self._describe([shared])
        self.dev = dev
        if own is not None:
            names = own.names(settings.task, gold_labels(self.preparation, dev), figures) if dev else ()
            check_metric(settings.evaluation.metric, (*figures, *names))
        self.loop = self._loop(encoder, train)
        self.best = BestModel(
            settings.evaluation.metric, settings.evaluation.patience, out / "best", self._keep_best
        )
        self.trainer = self._trainer()
        callback.say(planned(settings, self.batches, "pair" if self.few_shot else "text", ranks))
        self.loop.inputs = labeled_inputs(settings, base, given, held_out)
        if found is not None:
            self.best.restore(out / "log.jsonl", found.step)
            self.trainer.restore(found)
        if ranks.device.type == "cpu":
            train_with_onednn(self.loop.objective)

    def train(self) -> FinetuneResult:
        """Take all remaining steps, then export the best weights, or the last."""
        settings, loop = self.settings, self.loop
        figures = self.trainer.train()
        step = loop.step
        if self.best.best is not None and self.best.step != step:
            step = self.best.step
            self._restore_best()
            figures = self._evaluate()
        if self.few_shot:
            self.callback.say(self.few_shot.fit_head())
        if (said := self._one_sided()) is not None:
            self._describe([said])
        if settings.evaluation.calibrate:
            with evaluating(self.objective):
                calibrated = calibrate(self.objective.encoder, self.dev, self.callback.say)
            figures = {**figures, **{f"dev/{name}": value for name, value in calibrated.items()}}
        between = self._intervals()
        folder, facts = self.out / "model", self._facts(step, figures, between)
        export(
            loop,
            settings,
            self.checkpoint,
            folder,
            base=self.base,
            held_out=figures,
            written_card=None if facts is None else model_card(facts),
        )
        adapter = None if settings.adapter is None else self.out / "adapter"
        if adapter is not None and self.ranks.first:
            self._write_adapter(adapter, None if facts is None else model_card(facts, adapter=True))
        body, before = None, {}
        if self.few_shot:
            body, before = folder / "encoder", figures_before(self.out / "log.jsonl")
            if self.ranks.first:
                write_body(folder, body_checkpoint(settings, self.begun), body)
        named = {f"dev/{name}": one for name, one in between.items()}
        dev = before | dict(figures)
        return FinetuneResult(settings.name, folder, loop.step, step, dev, adapter, body, named)

    def _intervals(self) -> Mapping[str, Interval]:
        """Those of the figures on the dev data, in the first process."""
        if not self.dev or not self.ranks.first:
            return {}
        # Predicted once more, because the last evaluation may be of another process of the run.
        return intervals(self._predicted().scores, len(self.dev), self.settings.task)

    def _facts(
        self, step: int, figures: Mapping[str, float], between: Mapping[str, Interval]
    ) -> CardFacts | None:
        """What the card that the run writes says, in the first process, unless a file is named."""
        if self.settings.card is not None or not self.ranks.first:
            return None
        plain = {name.removeprefix("dev/"): value for name, value in figures.items()}
        labels = self.preparation.labels
        return CardFacts(
            self.settings,
            base_model(self.settings, self.base),
            labels,
            self.described,
            self.loop.step,
            step,
            plain,
            between,
        )

    def _records(self, names: tuple[str, ...]) -> list[Labeled]:
        notes = ReadingNotes()
        records = list(read_labeled(names, self.settings.data, self.base, notes))
        self._describe(notes.sentences())
        check_kinds(records, self.settings.task)
        return records

    def _examples(self, name: str, records: list[Labeled]) -> list[Example]:
        counts = Counts()
        examples = self.preparation.examples(records, counts)
        if name == "train":
            self.counts = counts
        self._describe(describe(name, counts, examples))
        return examples

    def _describe(self, sentences: Sequence[str]) -> None:
        self.described += sentences
        for sentence in sentences:
            self.callback.say(sentence)

    def _loop(self, encoder: Encoder, train: list[Example]) -> Loop:
        settings = self.settings
        items = self.preparation.items(train)
        self.few_shot = None
        if settings.few_shot is not None:
            self.few_shot = FewShot(settings, encoder, self.checkpoint, train, items)
            self._describe([self.few_shot.described()])
        self.batches = LabeledBatches(
            self.few_shot.pairs if self.few_shot else items,
            batch_size=settings.batch_size,
            micro_batches=settings.micro_batches,
            seed=settings.seed,
        )
        self.objective: LabeledObjective | ContrastiveObjective
        self.objective = self.few_shot.objective if self.few_shot else self._objective(encoder)
        return new_loop(settings, self.objective, self.checkpoint, self.batches, self.ranks)

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
        )

    def _trainer(self) -> Trainer:
        settings = self.settings
        return Trainer(
            self.loop,
            self._evaluate_and_keep if self.dev else None,
            settings=settings,
            evaluation=EvaluationSettings(
                every=settings.evaluation.every or self.batches.steps_per_epoch,
                at_start=settings.few_shot is not None,
            ),
            checkpoints=settings.checkpoints,
            log=settings.log,
            out=self.out,
            write=partial(write_model, self.loop, self.checkpoint),
            callback=self.callback,
            finished=lambda: self.best.stop,
        )

    def _evaluate(self) -> dict[str, float]:
        """Figures on the dev data; every process computes the same ones."""
        if self.few_shot:
            self.few_shot.fit_head()
        self.newest = self._predicted()
        figures = self.newest.figures()
        if self.own is not None:
            figures |= self.own.figures(self.newest.predictions, self.newest.labels)
        return {f"dev/{name}": value for name, value in figures.items()}

    def _predicted(self) -> Predicted:
        with evaluating(self.objective):
            return predicted(TorchEngine(self.objective.encoder), self.preparation, self.dev)

    def _one_sided(self) -> str | None:
        """A sentence about the weights that are exported, if they predict the same for every dev text."""
        if not self.dev:
            return None
        found = self.newest or self._predicted()  # a run that was finished before has evaluated nothing
        return one_sided(self.settings.task, found.predictions, found.labels)

    def _evaluate_and_keep(self) -> dict[str, float]:
        figures = self._evaluate()
        plain = {name.removeprefix("dev/"): value for name, value in figures.items()}
        if self.loop.step:  # an untrained encoder is never the best one
            self.best.evaluated(plain, self.loop.step)
        return figures

    def _keep_best(self, folder: Path) -> None:
        if not self.ranks.first:
            return
        with replaced_folder(folder) as made:
            if self.settings.adapter is None:
                write_model(self.loop, self.checkpoint, made)
            else:
                save_file(self._trained(), made / TRAINED)

    def _restore_best(self) -> None:
        encoder, folder = self.objective.encoder, self.best.folder
        if self.settings.adapter is None:
            kept = build(read_checkpoint(Source(folder, self.settings.name)))
            encoder.load_state_dict(kept.state_dict())
        else:
            encoder.load_state_dict(load_file(folder / TRAINED), strict=False)

    def _trained(self) -> dict[str, Tensor]:
        """The weights that an adapter consists of."""
        parts = self.objective.encoder.named_parameters()
        return {name: one.detach().contiguous() for name, one in parts if one.requires_grad}

    def _write_adapter(self, folder: Path, written_card: str | None) -> None:
        settings = self.settings
        assert settings.adapter is not None
        with replaced_folder(folder) as made:
            write_adapter(
                self.objective.encoder,
                self.checkpoint,
                TASKS[settings.task].role,
                made,
                name=settings.name,
                base=self.begun,
                how=low_rank(settings),
                card=card_of(settings, self.base, written_card),
                dtype=DTYPES[settings.adapter.dtype],
            )
