"""Hard negatives: for each query, documents that a model finds near it and that probably do not answer it.

Axes: Q queries; P documents; C candidates of a query.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import whole_file
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.models.model import Model
from unmask.spec import PoolingMode
from unmask.text.rows import json_rows

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
Say = Callable[[str], None]

DOCUMENTS_PER_PART, QUERIES_PER_PART = 1024, 256
"""How much is computed between two writes; also the most scores in memory at once."""

MINING_STREAM = 7
"""The seed stream of drawn negatives; see `unmask.training.run.loop` for the others."""


@dataclass(frozen=True)
class MiningSettings:
    """Which of the nearest documents are negatives; names are those of `sentence-transformers`."""

    num_negatives: int = 5
    """Negatives of each query."""
    range_min: int = 0
    """Leave out so many of the best candidates that pass the filters."""
    range_max: int = 100
    """Nearest documents that are looked at, besides positive ones; filters leave fewer."""
    max_score: float | None = None
    """Leave out candidates with a higher score."""
    absolute_margin: float | None = None
    """Leave out candidates whose score is not lower than that of the positive document by so much."""
    relative_margin: float | None = None
    """Leave out candidates whose score is above (1 - relative_margin) of that of the positive document: 0.05
    keeps those below 95 % of it."""
    sampling_strategy: Literal["top", "random"] = "top"
    """Take the best candidates, or draw among them."""
    seed: int = 0
    """Determines what is drawn."""
    pooling: PoolingMode | None = None
    """How vectors are pooled; None as the checkpoint says, and a plain encoder says nothing."""

    def __post_init__(self) -> None:
        if self.num_negatives < 1:
            raise InvalidRequest(f"num_negatives is {self.num_negatives}; it must be at least 1")
        if not 0 <= self.range_min <= self.range_max - self.num_negatives:
            raise InvalidRequest(
                f"range_min is {self.range_min} and range_max {self.range_max}, which leaves no room for "
                f"{self.num_negatives} negatives; raise range_max"
            )
        if self.sampling_strategy not in ("top", "random"):
            raise InvalidRequest(f"sampling_strategy is {self.sampling_strategy!r}; it can be top or random")


@dataclass(frozen=True)
class MinedFacts:
    """What a job found."""

    queries: int
    documents: int
    negatives: int
    without: int
    """Queries without any negative, which are left out of the file."""


def mine(
    model: Model,
    pairs: Path,
    out: Path,
    *,
    corpus: Path | None = None,
    settings: MiningSettings | None = None,
    say: Say = lambda _: None,
) -> MinedFacts:
    """Find hard negatives with exact search; write rows ``query``, ``positive``, ``negatives``, ``scores``.

    A killed job continues where it was when it is started again; its work lies in a folder beside ``out``.
    Vectors of documents are on disk, and at most one part of them is in memory.

    Args:
        model: gives the vectors; scores are cosines.
        pairs: JSONL rows with ``query`` and ``positive``; a query may have several rows.
        out: the file to write, one row for each row of ``pairs`` with a negative.
        corpus: JSONL rows with ``text``, and ``title`` if there is one; None searches the positive documents.
        settings: what counts as a negative.
        say: receives sentences about progress.

    Raises:
        InvalidRequest: the work in the folder is of other data, settings or another model.
        InvalidText: a row lacks a text.
        OutputError: ``out`` exists, or the disk is full or read-only.
    """
    settings = settings or MiningSettings()
    model.embedding_head(settings.pooling)  # refuses a model without one before anything is written
    if out.exists():
        raise OutputError(f"{out} exists already; move it away, or name another file")
    positives = _positives(pairs)
    documents = list(
        dict.fromkeys([*_documents(corpus), *(text for positive in positives.values() for text in positive)])
    )
    work = out.with_name(f".{out.name}.work")
    _begin(work, model, positives, documents, settings)
    count = len(range(0, len(documents), DOCUMENTS_PER_PART))
    for number in range(count):
        part_of_documents = documents[number * DOCUMENTS_PER_PART : (number + 1) * DOCUMENTS_PER_PART]
        _part(work / f"documents-{number:06d}.npy", model, part_of_documents, settings)
        say(f"documents: part {number + 1} of {count}")
    parts = [np.load(work / f"documents-{number:06d}.npy", mmap_mode="r") for number in range(count)]
    most = settings.range_max + max(map(len, positives.values()))
    queries, place = list(positives), {text: number for number, text in enumerate(documents)}
    with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        written = without = 0
        for start in range(0, len(queries), QUERIES_PER_PART):
            block = queries[start : start + QUERIES_PER_PART]
            positive_places = [[place[text] for text in positives[query]] for query in block]
            path = work / f"negatives-{start:09d}.json"
            if not path.exists():
                query_QE = _unit(model.embed_query(block, truncation="end", pooling=settings.pooling))
                _write_json(
                    path, _block(query_QE, parts, positive_places, most=most, start=start, settings=settings)
                )
            nearest_of_queries: list[Nearest] = json.loads(path.read_text(encoding="utf-8"))
            say(f"queries: {start + len(block):,} of {len(queries):,}")
            for query, positives_of_query, (places_C, scores_C, own_scores) in zip(
                block, positive_places, nearest_of_queries, strict=True
            ):
                without += not len(places_C)
                for positive_place, score in zip(positives_of_query, own_scores, strict=True):
                    if len(places_C):
                        written += len(places_C)
                        row = {
                            "query": query,
                            "positive": documents[positive_place],
                            "negatives": [documents[number] for number in places_C],
                            "scores": [score, *scores_C],
                        }
                        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    shutil.rmtree(work)
    return MinedFacts(len(queries), len(documents), written, without)


def _positives(path: Path) -> dict[str, list[str]]:
    positives: dict[str, list[str]] = {}
    for where, row in json_rows(path):
        texts = (row.get("query"), row.get("positive"))
        query, positive = (text.strip() if isinstance(text, str) else "" for text in texts)
        if not query or not positive:
            raise InvalidText(f"{where} has no query with a positive document; give both as strings")
        documents = positives.setdefault(query, [])
        if positive not in documents:
            documents.append(positive)
    if not positives:
        raise InvalidText(f"{path} has no rows; give a query and a positive document at least")
    return positives


def _documents(path: Path | None) -> Iterator[str]:
    if path is None:
        return
    for where, row in json_rows(path):
        # Stripped as positive documents are, which would else be negatives of their own queries.
        text = " ".join(
            part for part in (row.get("title"), row.get("text")) if isinstance(part, str) and part
        ).strip()
        if not text:
            raise InvalidText(f"{where} has no text; give a string under text")
        yield text


def _begin(
    work: Path, model: Model, positives: Any, documents: Sequence[str], settings: MiningSettings
) -> None:
    """Make the folder of the job, or refuse that of another one."""
    digest = hashlib.sha256(json.dumps([positives, documents]).encode()).hexdigest()
    parts = {"documents_per_part": DOCUMENTS_PER_PART, "queries_per_part": QUERIES_PER_PART}
    identity = {
        "dtype": model.dtype,
        "model": model.content_digest(),  # a folder may hold other weights under the same name
        "data": digest,
        "settings": asdict(settings) | parts,
    }
    path = work / "job.json"
    if path.exists():
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise OutputError(f"{path} is damaged; remove {work}, and the job starts again") from None
        other = [name for name, value in identity.items() if before.get(name) != value]
        if "dtype" in other:
            other.remove("model")  # whose digest includes it
        if other:
            raise InvalidRequest(
                f"{work} holds unfinished work with another {' and '.join(other)}; restore that, or remove "
                "the folder"
            )
        return
    work.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(identity), encoding="utf-8", newline="\n")


def _part(path: Path, model: Model, documents: Sequence[str], settings: MiningSettings) -> None:
    """Write the vectors of some documents, unless they are there."""
    if not path.exists():
        vectors_PE = _unit(model.embed_document(documents, truncation="end", pooling=settings.pooling))
        with whole_file(path) as partial, partial.open("wb") as stream:
            np.save(stream, vectors_PE)


def _write_json(path: Path, value: object) -> None:
    with whole_file(path) as partial:
        partial.write_text(json.dumps(value), encoding="utf-8", newline="\n")


def _unit(vectors: NDArray[Any]) -> Floats:
    exact = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    unit_vectors: Floats = exact / np.maximum(lengths, np.float32(1e-12))
    return unit_vectors


Nearest = tuple[list[int], list[float], list[float]]
"""Of a query: its negatives, their scores, and the scores of its positive documents."""


def _block(
    query_QE: Floats,
    parts: Sequence[Floats],
    positive_places: Sequence[Sequence[int]],
    *,
    most: int,
    start: int,
    settings: MiningSettings,
) -> list[Nearest]:
    """The negatives of a block of queries.

    Args:
        query_QE: their vectors.
        parts: the vectors of all documents.
        positive_places: the places of the positive documents of each query.
        most: the nearest documents that are looked at.
        start: the number of the first query.
        settings: which of these are negatives.
    """
    scores_QC, places_QC = nearest(query_QE, parts, most)
    block_rows = []
    for row, positives_of_query in enumerate(positive_places):
        own_scores = [float(query_QE[row] @ _row(parts, place)) for place in positives_of_query]
        draw = np.random.Generator(np.random.PCG64DXSM([settings.seed, MINING_STREAM, start + row]))
        candidate_places = candidates(
            scores_QC[row], places_QC[row], positives_of_query, min(own_scores), settings
        )
        chosen_places = chosen(candidate_places, settings, draw)
        block_rows.append(
            (places_QC[row][chosen_places].tolist(), scores_QC[row][chosen_places].tolist(), own_scores)
        )
    return block_rows


def _row(parts: Sequence[Floats], place: int) -> Floats:
    part, row = divmod(place, DOCUMENTS_PER_PART)
    vector: Floats = parts[part][row]
    return vector


def nearest(query_QE: Floats, parts: Sequence[Floats], count: int) -> tuple[Floats, Places]:
    """The documents with the highest scores, best first, of equal scores the first: scores and places.

    One part is scored at a time; the best so far are merged with it.
    """
    best_QC = np.empty((len(query_QE), 0), dtype=np.float32)
    places_QC = np.empty((len(query_QE), 0), dtype=np.int64)
    start = 0
    for part in parts:
        scores_QP = np.concatenate((best_QC, query_QE @ np.asarray(part).T), axis=1)
        new = np.broadcast_to(np.arange(start, start + len(part)), (len(query_QE), len(part)))
        all_places = np.concatenate((places_QC, new), axis=1)
        order = np.argsort(-scores_QP, axis=1, kind="stable")[:, :count]
        best_QC, places_QC = (np.take_along_axis(array, order, axis=1) for array in (scores_QP, all_places))
        start += len(part)
    return best_QC, places_QC


def candidates(
    scores_C: Floats,
    places_C: Places,
    positives_of_query: Sequence[int],
    lowest: float,
    settings: MiningSettings,
) -> Places:
    """The candidates that pass the filters, by their number, best first.

    Args:
        scores_C: scores of the nearest documents, best first.
        places_C: which documents they are.
        positives_of_query: the query's positive documents, which are never negatives.
        lowest: the lowest score of these; a margin is to it.
        settings: the filters.
    """
    keep_C = ~np.isin(places_C, positives_of_query)
    if settings.absolute_margin is not None:
        keep_C &= scores_C + settings.absolute_margin <= lowest
    if settings.relative_margin is not None:
        keep_C &= scores_C <= lowest - abs(lowest) * settings.relative_margin
    if settings.max_score is not None:
        keep_C &= scores_C <= settings.max_score
    return np.flatnonzero(keep_C)[settings.range_min : settings.range_max]


def chosen(places: Places, settings: MiningSettings, draw: np.random.Generator) -> Places:
    """The best of the candidates, or some that are drawn, best first."""
    if settings.sampling_strategy == "random" and len(places) > settings.num_negatives:
        return np.sort(draw.choice(places, settings.num_negatives, replace=False))
    return places[: settings.num_negatives]
