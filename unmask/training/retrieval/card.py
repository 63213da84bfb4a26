"""The model card of a trained retriever."""

from collections.abc import Mapping, Sequence

import unmask
from unmask.training.finetune.card import card_metadata, choice_of_weights, file_names, yaml_lines
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.retrieval.settings import Kind, RetrievalSettings

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
    if retrieval.shared_query:
        sentence += ", queries that attend to themselves alone (shared_query), which only unmask computes"
    if retrieval.kind == "sparse":
        weights = retrieval.regularizer
        sentence += (
            f", FLOPS regularizers of queries ({weights.query_weight:g}) and documents "
            f"({weights.document_weight:g})"
        )
    return sentence
