"""Figures of a retriever on dev data, with the weights that it has.

Axes: Q queries; P documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.finetuning.retrieval.figures import best_of, ranking_figures
from unmask.finetuning.retrieval.records import Collection
from unmask.finetuning.retrieval.start import RetrievalObjective
from unmask.learn.data.ranking import TokenizedText
from unmask.learn.objectives.retrieval.losses import similarities
from unmask.tasks.batches import TOKENS_PER_PASS, batches
from unmask.text.batch import PackedBatch

QUERIES_PER_TILE = 256
"""Queries whose scores of all documents are in memory at once."""


@dataclass(frozen=True, eq=False)
class DevSet:
    """Tokenized dev data."""

    collection: Collection
    queries: Sequence[TokenizedText]
    documents: Sequence[TokenizedText]


@torch.no_grad()
def dev_figures(objective: RetrievalObjective, dev: DevSet) -> dict[str, float]:
    """nDCG, MRR and recall of the dev queries among all dev documents."""
    query_QE, document_PE = (vectors(objective, texts) for texts in (dev.queries, dev.documents))
    rankings: list[NDArray[np.int64]] = []
    for start in range(0, len(query_QE), QUERIES_PER_TILE):
        scores_QP = similarities(
            query_QE[start : start + QUERIES_PER_TILE], document_PE, objective.contrast.similarity
        )
        rankings += [best_of(scores_P) for scores_P in scores_QP.cpu().numpy()]
    return ranking_figures([one.tolist() for one in rankings], dev.collection.answers)


def vectors(objective: RetrievalObjective, texts: Sequence[TokenizedText]) -> torch.Tensor:
    """The vector of each text, in float32 at least, in passes sorted by length."""

    def pack(chosen: NDArray[np.int64]) -> PackedBatch:
        some = [texts[index] for index in chosen]
        marks = [one.global_tokens for one in some]
        return PackedBatch.of_ids(
            [one.ids for one in some],
            [one.token_type_ids for one in some],
            marks if any(marks) else None,
        )

    found: torch.Tensor | None = None
    for chosen, batch in batches([len(one.ids) for one in texts], pack, TOKENS_PER_PASS):
        vectors_SE = objective.vectors(batch)
        if found is None:
            found = vectors_SE.new_empty((len(texts), vectors_SE.shape[1]))
        found[torch.as_tensor(chosen, device=found.device)] = vectors_SE
    assert found is not None
    return found
