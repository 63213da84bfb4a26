"""From settings to a trained retriever: start or resume a run."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import bfloat16

from unmask.errors import InvalidRequest
from unmask.files import replaced_folder
from unmask.finetuning.best import BestModel, check_metric
from unmask.finetuning.grid import FREE
from unmask.finetuning.result import FinetuneResult
from unmask.finetuning.retrieval.card import retriever_card
from unmask.finetuning.retrieval.evaluate import DevSet, dev_figures, dev_set
from unmask.finetuning.retrieval.figures import FIGURES
from unmask.finetuning.retrieval.records import Ranked, read_collection, read_ranked
from unmask.finetuning.retrieval.start import retriever, retriever_checkpoint
from unmask.finetuning.retrieval.texts import RetrievalTexts, TextCounts
from unmask.finetuning.settings import FinetuneSettings
from unmask.finetuning.start import base_model, first_checkpoint
from unmask.learn.data.ranking import RankingBatches
from unmask.learn.optim import build_optimizer
from unmask.learn.pretrain.checkpoint import Snapshot
from unmask.learn.pretrain.export import card_of, check_encoders, check_place, export, write_model
from unmask.learn.pretrain.loop import Loop, evaluating
from unmask.learn.pretrain.loop_settings import LoopSettings, TextBatchSettings
from unmask.learn.pretrain.ranks import Ranks
from unmask.learn.pretrain.report import Callback, counted
from unmask.learn.pretrain.settings import EvaluationSettings
from unmask.learn.pretrain.sharded import newest_for_all
from unmask.learn.pretrain.state import refuse_changes
from unmask.learn.pretrain.trainer import Trainer
from unmask.model.trained_linear import train_with_onednn
from unmask.model.weights import Source, read_checkpoint
from unmask.model.weights.build import build


class RetrievalRun:
    """The run of a retriever with its parts, at its newest intact checkpoint.

    Args:
        settings: settings of the run.
        base: the folder that paths in the settings are relative to.
        out: the run's folder.
        ranks: the processes of the run.
        callback: receives progress.
    """

    def __init__(
        self, settings: FinetuneSettings, base: Path, out: Path, ranks: Ranks, callback: Callback
    ) -> None:
        assert settings.retrieval is not None
        self.settings, self.retrieval = settings, settings.retrieval
        self.base, self.out, self.ranks, self.callback = base, out, ranks, callback
        self.described: list[str] = []
        """What was said about the data."""
        found = self._found()
        check_metric(settings.evaluation.metric, FIGURES)
        records = list(read_ranked(settings.data.train, settings.data, base))
        begun = first_checkpoint(settings, base)
        self.checkpoint = retriever_checkpoint(settings, begun)
        self.objective = retriever(settings, self.checkpoint, begun, callback.say, weights=found is None)
        self.texts = RetrievalTexts(settings, self.checkpoint)
        self.loop = self._loop(records)
        self.dev = self._dev(records)
        self.best = BestModel(
            settings.evaluation.metric, settings.evaluation.patience, out / "best", self._keep_best
        )
        self.trainer = self._trainer()
        callback.say(
            f"{settings.name}: {settings.epochs:g} {'epoch' if settings.epochs == 1 else 'epochs'} of "
            f"{counted(self.batches.steps_per_epoch, 'step')}, {self.loop.settings.steps:,} in all, of "
            f"{settings.batch_size:,} {'query' if settings.batch_size == 1 else 'queries'}, in "
            f"{settings.precision} on {ranks.device.type}"
        )
        if found is not None:
            self.trainer.restore(found)
            self.best.restore(out / "log.jsonl", found.step)
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
        folder = self.out / "model"
        card = retriever_card(
            settings,
            base_model(settings, self.base),
            self.described,
            best_step=step,
            steps=loop.step,
            figures=figures,
        )
        export(loop, settings, self.checkpoint, folder, base=self.base, held_out=figures, written_card=card)
        return FinetuneResult(settings.name, folder, loop.step, step, dict(figures))

    def _found(self) -> Snapshot | None:
        """The newest intact checkpoint of the run; impossible requests are refused before it is read."""
        settings = self.settings
        check_place(self.out / "model", settings.name)
        if settings.card is not None:
            card_of(settings, self.base, None)
        found = newest_for_all(self.out / "checkpoints", self.ranks, self.callback.say)
        if found is not None:
            refuse_changes(settings, found.state["settings"], self.out, FREE)
        return found

    def _loop(self, records: Sequence[Ranked]) -> Loop:
        settings = self.settings
        queries, documents = TextCounts(), TextCounts()
        items = self.texts.items(records, queries, documents)
        self._describe(
            [
                f"train: {counted(len(items), 'pair')} of a query and a document that answers it, with "
                f"{counted(sum(len(item.documents) - 1 for item in items), 'given negative')}",
                *queries.described("queries"),
                *documents.described("documents"),
            ]
        )
        self.batches = RankingBatches(
            items,
            batch_size=settings.batch_size,
            micro_batches=settings.micro_batches,
            seed=settings.seed,
            distinct=self.retrieval.distinct,
        )
        check_encoders(self.objective, self.checkpoint)
        if settings.precision == "bfloat16":
            self.objective.to(bfloat16)
        self.objective.to(self.ranks.device).train()
        return Loop(
            LoopSettings(
                max(1, round(settings.epochs * self.batches.steps_per_epoch)),
                TextBatchSettings(settings.batch_size, settings.micro_batches),
                settings.optimizer,
                settings.schedule,
                settings.precision,
                settings.seed,
                faults=settings.faults,
            ),
            self.objective,
            self.batches,
            optimizer=build_optimizer(self.objective, settings.optimizer),
            averages=None,
            ranks=self.ranks,
            ahead=self.ranks.device.type != "cpu",
        )

    def _dev(self, records: Sequence[Ranked]) -> DevSet | None:
        data = self.settings.data
        if not data.dev:
            return None
        found = read_collection(data.dev, data, self.base, self.retrieval.dev_documents)
        if not found.queries:
            raise InvalidRequest(f"data.dev has no queries: {', '.join(data.dev)}; leave it out")
        self._describe(
            [f"dev: {len(found.queries):,} different queries, {len(found.documents):,} different documents"]
        )
        trained = {record.query for record in records}
        shared = sum(query in trained for query in found.queries)
        if shared:
            of = f"{shared:,} of {len(found.queries):,} queries"
            self._describe([f"dev: {of} {'is' if shared == 1 else 'are'} also trained on"])
        return dev_set(found, self.texts)

    def _describe(self, sentences: Sequence[str]) -> None:
        self.described += sentences
        for sentence in sentences:
            self.callback.say(sentence)

    def _trainer(self) -> Trainer:
        settings = self.settings
        return Trainer(
            self.loop,
            self._evaluate_and_keep if self.dev else None,
            settings=settings,
            evaluation=EvaluationSettings(
                every=settings.evaluation.every or self.batches.steps_per_epoch, at_start=True
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
        assert self.dev is not None
        with evaluating(self.objective):
            figures = dev_figures(self.objective, self.dev)
        return {f"dev/{name}": value for name, value in figures.items()}

    def _evaluate_and_keep(self) -> Mapping[str, float]:
        figures = self._evaluate()
        if self.loop.step:  # the checkpoint that the run starts from is never the best one
            plain = {name.removeprefix("dev/"): value for name, value in figures.items()}
            self.best.evaluated(plain, self.loop.step)
        return figures

    def _keep_best(self, folder: Path) -> None:
        if self.ranks.first:
            with replaced_folder(folder) as made:
                write_model(self.loop, self.checkpoint, made)

    def _restore_best(self) -> None:
        kept = build(read_checkpoint(Source(self.best.folder, self.settings.name)))
        self.objective.encoder.load_state_dict(kept.state_dict())
