"""Score a model's retrieval on a test collection."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from unmask.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.loaded import Model
from unmask.search.documents import Document, Skipped
from unmask.search.evaluation.collection import Judged, Judgments, read_beir
from unmask.search.evaluation.dense import DenseSettings, PassageMode, dense_run
from unmask.search.evaluation.figures import CUTOFFS, Figure, figures, without_same_id
from unmask.search.passages import TokensIndexed
from unmask.tasks.progress import Progress
from unmask.tasks.similarity import METRICS, Metric

Mode = Literal["dense"]
"""How documents are searched: ``dense`` compares one vector per text, exactly."""


@dataclass(frozen=True)
class RetrievalResult:
    """How well a model finds the judged documents of a collection."""

    model: str
    revision: str | None
    dtype: str
    data: str
    split: str
    mode: Mode
    passage_mode: PassageMode
    metric: Metric
    documents: int
    passages: int
    truncated_documents: int
    """Documents of which tokens were dropped."""
    tokens: TokensIndexed
    skipped: tuple[Skipped, ...]
    """Documents without text, which cannot be found."""
    missing_documents: int
    """Relevant documents of the judgments that the corpus does not hold, or that were skipped."""
    queries: int
    figures: tuple[Figure, ...]
    ties_at: Mapping[int, int]
    """See `Figures.ties_at`."""
    per_query: Mapping[str, Mapping[str, float]]
    seconds: float


def evaluate_retrieval(
    model: Model,
    data: str | Path | Judged,
    *,
    split: str | None = None,
    mode: Mode = "dense",
    settings: DenseSettings | None = None,
    cutoffs: Iterable[int] = CUTOFFS,
    drop_same_id: bool = False,
    progress: Progress | None = None,
) -> RetrievalResult:
    """Figures of a model on a collection in BEIR's layout.

    Args:
        model: an embedding model.
        data: the folder, or what `read_beir` returned.
        split: the judgments to use; None: ``test``, or the only split.
        mode: see `Mode`.
        settings: how documents become vectors.
        cutoffs: of nDCG, recall and MRR.
        drop_same_id: leave out the document whose id is the query's, as usual for ArguAna and Quora.
        progress: called with the number of documents read and 0.

    Raises:
        InvalidRequest: an argument is invalid, or a file of the collection is missing.
        TextError: the collection cannot be read.
    """
    check_choice("mode", mode, get_args(Mode))
    settings = settings or DenseSettings()
    check_choice("passages", settings.passages, get_args(PassageMode))
    check_choice("metric", settings.metric, METRICS)
    judged = data if isinstance(data, Judged) else read_beir(Path(data))
    split = _split(judged, split)
    judgments = judged.judgments(split)
    queries = {query: judged.queries[query] for query in judgments}
    wanted = _relevant(judgments)
    began = time.monotonic()
    run = dense_run(model, queries, _without(judged.corpus(), wanted), settings, progress=progress)
    seconds = time.monotonic() - began
    wanted |= {one.name for one in run.skipped} & _relevant(judgments)
    scores = without_same_id(run.scores) if drop_same_id else run.scores
    found = figures(scores, judgments, tuple(cutoffs))
    return RetrievalResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        data=judged.name,
        split=split,
        mode=mode,
        passage_mode=settings.passages,
        metric=settings.metric,
        documents=run.documents,
        passages=run.passages,
        truncated_documents=run.truncated,
        tokens=run.tokens,
        skipped=tuple(run.skipped),
        missing_documents=len(wanted),
        queries=found.queries,
        figures=found.figures,
        ties_at=found.ties_at,
        per_query=found.per_query,
        seconds=round(seconds, 3),
    )


def _split(judged: Judged, split: str | None) -> str:
    if split is not None:
        return split
    if "test" in judged.splits or len(judged.splits) == 1:
        return "test" if "test" in judged.splits else judged.splits[0]
    raise InvalidRequest(f"{judged.name} has the splits {', '.join(judged.splits)}; name one of them")


def _relevant(judgments: Judgments) -> set[str]:
    return {document for grades in judgments.values() for document, grade in grades.items() if grade > 0}


def _without(corpus: Iterable[Document | Skipped], wanted: set[str]) -> Iterator[Document | Skipped]:
    """The corpus, each document of which is removed from ``wanted`` when it is read."""
    for one in corpus:
        if isinstance(one, Document):
            wanted.discard(one.id)
        yield one
