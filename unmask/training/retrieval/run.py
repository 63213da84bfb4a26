"""From settings to a trained retriever: start or resume a run."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from unmask.base.files import replaced_folder
from unmask.encoder.heads import StaticWeights
from unmask.encoder.trained_linear import train_with_onednn
from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledBatches
from unmask.training.data.ranking import RankingBatches
from unmask.training.finetune.best import BestModel, check_metric
from unmask.training.finetune.inputs import ranked_inputs
from unmask.training.finetune.parts import new_loop, newest_checkpoint, planned, steps_of
from unmask.training.finetune.result import FinetuneResult
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.start import base_model, first_checkpoint
from unmask.training.pretrain.export import export, write_model
from unmask.training.retrieval.card import retriever_card
from unmask.training.retrieval.evaluate import DevSet, dev_figures, dev_set
from unmask.training.retrieval.figures import FIGURES
from unmask.training.retrieval.records import Ranked, read_collection, read_ranked
from unmask.training.retrieval.settings import STATIC_RATE
from unmask.training.retrieval.start import retriever, retriever_checkpoint
from unmask.training.retrieval.teacher import Vectors, read_texts, stored_vectors, teacher_vectors
from unmask.training.retrieval.texts import RetrievalTexts, TextCounts
from unmask.training.run.callbacks import Callback
from unmask.training.run.loop import evaluating
from unmask.training.run.ranks import Ranks
from unmask.training.run.report import counted
from unmask.training.run.settings import EvaluationSettings
from unmask.training.run.trainer import Trainer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build


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
        found = newest_checkpoint(settings, base, out, ranks, callback)
        check_metric(settings.evaluation.metric, FIGURES)
        begun = first_checkpoint(settings, base)
        records, vectors = self._read()
        taught = None if vectors is None else vectors.shape[1]
        self.checkpoint = retriever_checkpoint(settings, begun, taught)
        self.texts = RetrievalTexts(settings, self.checkpoint, partial(callback.tokenizing, "training data"))
        self.batches = self._batches(records, vectors)
        steps = steps_of(settings, self.batches)
        self.objective = retriever(
            settings, self.checkpoint, begun, callback.say, steps=steps, weights=found is None
        )
        self.loop = new_loop(
            settings, self.objective, self.checkpoint, self.batches, ranks, own_rates=self._own_rates()
        )
        self.dev = self._dev(records)
        self.best = BestModel(
            settings.evaluation.metric, settings.evaluation.patience, out / "best", self._keep_best
        )
        self.trainer = self._trainer()
        callback.say(planned(settings, self.batches, "item" if vectors is None else "text", ranks))
        self.loop.inputs = ranked_inputs(settings, base, records, self.dev.collection if self.dev else None)
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

    def _read(self) -> tuple[list[Ranked] | list[str], Vectors | None]:
        """The training data, and of distillation the teacher's vector of each text."""
        settings, retrieval = self.settings, self.retrieval
        if retrieval.kind != "distillation":
            return list(read_ranked(settings.data.train, settings.data, self.base)), None
        texts = read_texts(settings.data.train, settings.data, self.base)
        if retrieval.teacher_vectors is not None:
            return texts, stored_vectors(self.base / retrieval.teacher_vectors, len(texts))
        assert retrieval.teacher is not None
        return texts, teacher_vectors(retrieval.teacher, texts, self.base, self.out, self.callback.say)

    def _batches(
        self, records: list[Ranked] | list[str], vectors: Vectors | None
    ) -> RankingBatches | LabeledBatches:
        settings = self.settings
        if vectors is not None:
            counts = TextCounts()
            taught = self.texts.taught([one for one in records if isinstance(one, str)], vectors, counts)
            self._describe([*counts.described("train"), f"train: {len(taught):,} vectors of the teacher"])
            return LabeledBatches(
                taught,
                batch_size=settings.batch_size,
                micro_batches=settings.micro_batches,
                seed=settings.seed,
            )
        queries, documents = TextCounts(), TextCounts()
        ranked = [one for one in records if isinstance(one, Ranked)]
        items = self.texts.items(ranked, queries, documents)
        self._describe(
            [
                f"train: {counted(len(items), 'pair')} of a query and a document that answers it, with "
                f"{counted(sum(len(item.documents) - 1 for item in items), 'given negative')}",
                *([] if self.retrieval.kind == "reranker" else queries.described("queries")),
                *documents.described("documents"),
            ]
        )
        return RankingBatches(
            items,
            batch_size=settings.batch_size,
            micro_batches=settings.micro_batches,
            seed=settings.seed,
            distinct=self.retrieval.distinct,
        )

    def _own_rates(self) -> dict[nn.Parameter, float]:
        """Learning rates of parameters that have one of their own: a table of weights of words, which a few
        steps at an encoder's rate would leave as it is."""
        rate = self.retrieval.query_learning_rate or STATIC_RATE
        layers = self.objective.encoder.output
        return {layer.weight: rate for layer in layers if isinstance(layer, StaticWeights)}

    def _dev(self, records: list[Ranked] | list[str]) -> DevSet | None:
        data = self.settings.data
        if not data.dev:
            return None
        found = read_collection(data.dev, data, self.base, self.retrieval.dev_documents)
        if not found.queries:
            raise InvalidRequest(f"data.dev has no queries: {', '.join(data.dev)}; leave it out")
        self._describe(
            [f"dev: {len(found.queries):,} different queries, {len(found.documents):,} different documents"]
        )
        trained = {one.query if isinstance(one, Ranked) else one for one in records}
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
