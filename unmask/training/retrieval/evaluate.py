"""Figures of a retriever on dev data, with the weights that it has.

Axes: Q queries; P documents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.tasks.batches import TOKENS_PER_PASS, batches
from unmask.text.batch import PackedBatch
from unmask.training.data.ranking import TokenizedText
from unmask.training.finetune.metrics import best_of, ranking_figures
from unmask.training.objectives.retrieval_bi_encoder import (
    DenseObjective,
    MultiVectorObjective,
    SparseObjective,
    kept_layout,
    late_scores,
)
from unmask.training.objectives.retrieval_example import Encode, packed, parts_of
from unmask.training.objectives.retrieval_losses import similarities
from unmask.training.objectives.retrieval_reranker import RerankerObjective
from unmask.training.objectives.specs import Similarity
from unmask.training.retrieval.records import Collection
from unmask.training.retrieval.start import RetrievalObjective
from unmask.training.retrieval.texts import RetrievalTexts

QUERIES_PER_TILE = 256
"""Queries whose scores of all documents are in memory at once."""


@dataclass(frozen=True, eq=False)
class DevSet:
    """Tokenized dev data."""

    collection: Collection
    queries: Sequence[TokenizedText]
    documents: Sequence[TokenizedText]
    """All documents; for a reranker, each query with each document of its own row."""


def dev_set(collection: Collection, texts: RetrievalTexts) -> DevSet:
    """Tokenize dev data for the kind of retriever that the texts are for."""
    if texts.retrieval.kind == "reranker":
        pairs = [
            (query, collection.documents[place])
            for query, places in zip(collection.queries, collection.listed, strict=True)
            for place in places
        ]
        queries, documents = zip(*pairs, strict=True)
        return DevSet(collection, (), texts.pairs(queries, documents))
    return DevSet(collection, texts.queries(collection.queries), texts.documents(collection.documents))


@torch.no_grad()
def dev_figures(objective: RetrievalObjective, dev: DevSet) -> dict[str, float]:
    """nDCG, MRR and recall of the dev queries: among all dev documents, or among those of its row."""
    if isinstance(objective, SparseObjective):
        return _sparse(objective, dev)
    if isinstance(objective, RerankerObjective):
        rankings = _reranked(objective, dev)
    elif isinstance(objective, MultiVectorObjective):
        rankings = _late(objective, dev)
    else:
        similarity = objective.ranking.similarity if isinstance(objective, DenseObjective) else "cosine"
        rankings = _dense(objective.vectors, similarity, dev)
    return ranking_figures(rankings, dev.collection.answers)


def _dense(encode: Encode, similarity: Similarity, dev: DevSet) -> list[list[int]]:
    query_QE, document_PE = (_rows(encode, texts) for texts in (dev.queries, dev.documents))
    rankings: list[list[int]] = []
    for start in range(0, len(query_QE), QUERIES_PER_TILE):
        scores_QP = similarities(query_QE[start : start + QUERIES_PER_TILE], document_PE, similarity)
        rankings += _best(scores_QP)
    return rankings


def _late(objective: MultiVectorObjective, dev: DevSet) -> list[list[int]]:
    """Documents are scored as they are encoded, so that their vectors are never in memory together."""
    batch = packed(dev.queries)
    query_TE = torch.cat([objective.vectors(part) for part in parts_of(batch, TOKENS_PER_PASS)])
    scores_QP = query_TE.new_empty((len(dev.queries), len(dev.documents)))
    for chosen, part in _passes(dev.documents):
        kept_T = ~np.isin(part.ids_T, objective.skipped)
        document_TE = objective.vectors(part)[torch.from_numpy(kept_T).to(query_TE.device)]
        places = torch.from_numpy(chosen).to(query_TE.device)
        scores_QP[:, places] = late_scores(
            query_TE, batch.layout, document_TE, kept_layout(part.layout, kept_T)
        )
    return _best(scores_QP)


def _sparse(objective: SparseObjective, dev: DevSet) -> dict[str, float]:
    """Figures of the ranking, and the mean numbers of words with a weight. Of all weights of queries and of
    documents, only those that are not 0 are in memory together."""
    if objective.output.static_queries:
        queries = [_words(objective, objective.static_vectors([query.ids])) for query in dev.queries]
        query_QV = torch.cat(queries).coalesce()
    else:
        query_QV = _sparse_rows(objective, dev.queries)
    document_PV = _sparse_rows(objective, dev.documents)
    counts = {
        f"{name}_words": vectors.values().numel() / len(vectors)
        for name, vectors in (("query", query_QV), ("document", document_PV))
    }
    rankings: list[list[int]] = []
    for start in range(0, len(query_QV), QUERIES_PER_TILE):
        places = torch.arange(start, min(start + QUERIES_PER_TILE, len(query_QV)), device=query_QV.device)
        tile_VQ = query_QV.index_select(0, places).to_dense().T
        rankings += _best(torch.sparse.mm(document_PV, tile_VQ).T)
    return ranking_figures(rankings, dev.collection.answers) | counts


def _sparse_rows(objective: SparseObjective, texts: Sequence[TokenizedText]) -> Tensor:
    """A row of weights for each text, in their order."""
    chosen: list[NDArray[np.int64]] = []
    rows: list[Tensor] = []
    for places, batch in _passes(texts):
        chosen.append(places)
        rows.append(_words(objective, objective.vectors(batch)))
    unordered = torch.cat(rows)
    order = torch.from_numpy(np.argsort(np.concatenate(chosen))).to(unordered.device)
    return unordered.index_select(0, order).coalesce()


def _words(objective: SparseObjective, weights_SV: Tensor) -> Tensor:
    """The weights that are not 0, of which the checkpoint may keep only the largest."""
    most = objective.output.most_words
    if most is not None and most < weights_SV.shape[1]:
        best = weights_SV.topk(most, dim=1)
        weights_SV = torch.zeros_like(weights_SV).scatter(1, best.indices, best.values)
    return weights_SV.to_sparse()


def _reranked(objective: RerankerObjective, dev: DevSet) -> list[list[int]]:
    scores_P = _rows(objective.scores, dev.documents)[:, 0].cpu().numpy()
    rankings, start = [], 0
    for places in dev.collection.listed:
        best = best_of(scores_P[start : start + len(places)])
        rankings.append([places[place] for place in best])
        start += len(places)
    return rankings


def _best(scores_QP: Tensor) -> list[list[int]]:
    return [best_of(scores_P).tolist() for scores_P in scores_QP.cpu().numpy()]


def _passes(texts: Sequence[TokenizedText]) -> Iterator[tuple[NDArray[np.int64], PackedBatch]]:
    """Batches of a bounded number of tokens, of texts of similar length."""
    return batches(
        [len(text.ids) for text in texts],
        lambda chosen: packed([texts[index] for index in chosen]),
        TOKENS_PER_PASS,
    )


def _rows(encode: Encode, texts: Sequence[TokenizedText]) -> Tensor:
    """One row for each text, in their order."""
    ordered: Tensor | None = None
    for chosen, batch in _passes(texts):
        rows = encode(batch)
        if ordered is None:
            ordered = rows.new_empty((len(texts), rows.shape[1]))
        ordered[torch.from_numpy(chosen).to(ordered.device)] = rows
    assert ordered is not None
    return ordered
