"""From settings to a trained retriever with its model card: start or resume a run."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

import unmask
from unmask.base.progress import counted
from unmask.encoder.heads import StaticWeights
from unmask.errors import InvalidRequest
from unmask.training.data.labeled import LabeledBatches
from unmask.training.data.ranking import RankingBatches
from unmask.training.finetune.card import card_metadata, choice_of_weights, file_names, yaml_lines
from unmask.training.finetune.metrics import RANKING_FIGURES, check_metric
from unmask.training.finetune.result import FinetuneResult, ranked_inputs
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.supervised import SupervisedRun, TrainingBatches
from unmask.training.objectives.interface import Objective
from unmask.training.retrieval.evaluate import DevSet, dev_figures, dev_set
from unmask.training.retrieval.records import (
    Ranked,
    Vectors,
    read_collection,
    read_ranked,
    read_texts,
    stored_vectors,
    teacher_vectors,
)
from unmask.training.retrieval.settings import STATIC_RATE, Kind, RetrievalSettings
from unmask.training.retrieval.start import RetrievalObjective, retriever, retriever_checkpoint
from unmask.training.retrieval.texts import RetrievalTexts, TextCounts
from unmask.training.run.base_model import base_model_name, first_checkpoint
from unmask.training.run.loop import evaluating

KINDS: Mapping[Kind, str] = {
    "dense": "A retriever with one vector per text",
    "multi_vector": "A retriever with one vector per token",
    "sparse": "A retriever with one weight per word of the vocabulary",
    "reranker": "A cross-encoder that scores a query and a document",
    "distillation": "A retriever with one vector per text, distilled from a teacher's vectors",
}

PIPELINES: Mapping[Kind, str] = {"reranker": "text-ranking", "sparse": "feature-extraction"}
"""The hub's names of their uses; sentence-similarity for the others."""


def retriever_card(
    settings: FinetuneSettings,
    base_model: str,
    data: Sequence[str],
    *,
    best_step: int,
    steps: int,
    figures: Mapping[str, float],
) -> str:
    """The text of README.md: metadata, protocol, data and scores."""
    retrieval = settings.retrieval
    assert retrieval is not None
    pipeline = PIPELINES.get(retrieval.kind, "sentence-similarity")
    library = "unmask" if retrieval.shared_query else "sentence-transformers"
    metadata = card_metadata(settings, base_model, pipeline, library, "retrieval")
    lines = ["---", *yaml_lines(metadata), "---", "", f"# {settings.name}", ""]
    lines += [
        f"{KINDS[retrieval.kind]}, trained from {base_model} with unmask {unmask.__version__}.",
        "",
    ]
    if figures:
        lines += [f"On {file_names(settings.data.dev)}:", "", "| figure | value |", "|---|---|"]
        lines += [f"| {name.removeprefix('dev/')} | {value:.4f} |" for name, value in figures.items()]
        lines += [""]
    lines += choice_of_weights(settings, best_step, "queries")
    optimizer = settings.optimizer
    lines += [
        "## Training",
        "",
        f"- {steps:,} steps of {settings.batch_size:,} queries, {_loss(retrieval)}",
        f"- {optimizer.kind}, learning rate {optimizer.learning_rate:g}, {settings.schedule.kind} schedule",
        f"- seed {settings.seed}, precision {settings.precision}",
        *(f"- {sentence}" for sentence in data),
        "",
    ]
    return "\n".join(lines)


def _loss(retrieval: RetrievalSettings) -> str:
    """The loss and what it depends on."""
    sentence = f"loss {retrieval.loss}"
    if retrieval.teacher is not None:
        sentence += f", teacher {retrieval.teacher}"
    if retrieval.kind in ("dense", "multi_vector", "sparse"):
        ranking = retrieval.ranking
        if ranking.loss == "contrastive":
            sentence += f" with scale {ranking.scale:g}"
        elif ranking.loss == "kl":
            sentence += f" with temperature {ranking.temperature:g}"
        if retrieval.kind == "dense":
            sentence += f", {ranking.similarity} similarity"
        if retrieval.depths:
            depths = " and ".join(map(str, sorted(retrieval.depths)))
            sentence += f", the mean loss of the first {depths} layers alone added"
    if retrieval.shared_query:
        sentence += ", queries that attend to themselves alone (shared_query), which only unmask computes"
    if retrieval.kind == "sparse":
        weights = retrieval.regularizer
        sentence += (
            f", FLOPS regularizers of queries ({weights.query_weight:g}) and documents "
            f"({weights.document_weight:g})"
        )
    return sentence


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
