"""From settings to a trained retriever: start or resume a run."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from unmask.encoder.heads import StaticWeights
from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledBatches
from unmask.training.data.ranking import RankingBatches
from unmask.training.finetune.inputs import ranked_inputs
from unmask.training.finetune.metrics import RANKING_FIGURES, check_metric
from unmask.training.finetune.result import FinetuneResult
from unmask.training.finetune.supervised import SupervisedRun, TrainingBatches
from unmask.training.objectives.interface import Objective
from unmask.training.retrieval.card import retriever_card
from unmask.training.retrieval.evaluate import DevSet, dev_figures, dev_set
from unmask.training.retrieval.records import Ranked, read_collection, read_ranked
from unmask.training.retrieval.settings import STATIC_RATE
from unmask.training.retrieval.start import RetrievalObjective, retriever, retriever_checkpoint
from unmask.training.retrieval.teacher import Vectors, read_texts, stored_vectors, teacher_vectors
from unmask.training.retrieval.texts import RetrievalTexts, TextCounts
from unmask.training.run.base_model import base_model_name, first_checkpoint
from unmask.training.run.loop import evaluating
from unmask.training.run.report import counted


class RetrievalRun(SupervisedRun):
    """The run of a retriever, see `SupervisedRun`."""

    evaluates_at_start = True

    objective: RetrievalObjective
    dev: DevSet | None

    def build(self, *, resumed: bool) -> RetrievalObjective:
        """Records or vectors of a teacher, the checkpoint, tokenized texts, and the objective."""
        settings, say = self.settings, self.callback.say
        assert settings.retrieval is not None
        self.retrieval = settings.retrieval
        check_metric(settings.evaluation.metric, RANKING_FIGURES)
        begun = first_checkpoint(settings, self.base)
        self.records, vectors = self._read()
        taught = None if vectors is None else vectors.shape[1]
        self.unit = "item" if vectors is None else "text"
        self.checkpoint = retriever_checkpoint(settings, begun, taught)
        self.texts = RetrievalTexts(
            settings, self.checkpoint, partial(self.callback.tokenizing, "training data")
        )
        self.training = self._batches(self.records, vectors)
        self.objective = retriever(
            settings, self.checkpoint, begun, say, steps=self.steps, weights=not resumed
        )
        return self.objective

    def learning_rates(self, objective: Objective[Any, Any]) -> Mapping[nn.Parameter, float]:
        """That of a table of weights of words, which few steps at an encoder's rate would leave as it is."""
        rate = self.retrieval.query_learning_rate or STATIC_RATE
        layers = self.objective.encoder.output
        return {layer.weight: rate for layer in layers if isinstance(layer, StaticWeights)}

    def batches(self, objective: Objective[Any, Any]) -> TrainingBatches:
        """Those that `build` made; dev data are read now."""
        self.dev = self._dev(self.records)
        return super().batches(objective)

    def inputs(self) -> Mapping[str, str]:
        """Records or texts, dev data, the first checkpoint, and the teacher."""
        judged = self.dev.collection if self.dev else None
        return ranked_inputs(self.settings, self.base, self.records, judged)

    def dev_figures(self) -> dict[str, float]:
        """Those of rankings of the dev documents."""
        assert self.dev is not None
        with evaluating(self.objective):
            return dev_figures(self.objective, self.dev)

    def finish_best(self, figures: Mapping[str, float], step: int) -> FinetuneResult:
        """With a card."""
        settings, steps = self.settings, self.loop.step
        name = base_model_name(settings.model.start_from, self.base)
        card = retriever_card(settings, name, self.described, best_step=step, steps=steps, figures=figures)
        return FinetuneResult(settings.name, self.export(figures, card), steps, step, dict(figures))

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
            taught = self.texts.taught(
                [record for record in records if isinstance(record, str)], vectors, counts
            )
            self.describe([*counts.described("train"), f"train: {len(taught):,} vectors of the teacher"])
            return LabeledBatches(
                taught,
                batch_size=settings.batch_size,
                micro_batches=settings.micro_batches,
                seed=settings.seed,
            )
        queries, documents = TextCounts(), TextCounts()
        ranked = [record for record in records if isinstance(record, Ranked)]
        items = self.texts.items(ranked, queries, documents)
        self.describe(
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

    def _dev(self, records: list[Ranked] | list[str]) -> DevSet | None:
        data = self.settings.data
        if not data.dev:
            return None
        collection = read_collection(data.dev, data, self.base, self.retrieval.dev_documents)
        if not collection.queries:
            raise InvalidRequest(f"data.dev has no queries: {', '.join(data.dev)}; leave it out")
        self.describe(
            [
                f"dev: {len(collection.queries):,} different queries, "
                f"{len(collection.documents):,} different documents"
            ]
        )
        trained = {record.query if isinstance(record, Ranked) else record for record in records}
        shared = sum(query in trained for query in collection.queries)
        if shared:
            of = f"{shared:,} of {len(collection.queries):,} queries"
            self.describe([f"dev: {of} {'is' if shared == 1 else 'are'} also trained on"])
        return dev_set(collection, self.texts)
