"""What a retriever learns from: queries with their documents, and the vectors of a teacher.

Queries are rows of tables, or of collections in the layout of BEIR; a teacher's vectors are those of a file,
or of a checkpoint that encodes the texts once.

Axes: Q texts.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import whole_file
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest, InvalidText, OutputError, quoted
from unmask.spec import PooledVector
from unmask.tasks.embed import embed
from unmask.text.lines import COMPRESSED
from unmask.text.memory import Rows
from unmask.text.rows import json_rows, tsv_rows
from unmask.training.finetune.records import labeled_files, table_rows, value_under
from unmask.training.finetune.settings import DataSettings
from unmask.training.run.base_model import source
from unmask.training.run.callbacks import Say
from unmask.weights import read_checkpoint
from unmask.weights.build import build
from unmask.weights.read.fingerprint import fingerprint

NEGATIVES = ("negative", "negatives")
"""The columns of negatives that are read if none is named."""


@dataclass(frozen=True)
class Ranked:
    """A query, and documents of which the first answers it."""

    where: str
    """Its file and line, for errors."""
    query: str
    documents: tuple[str, ...]
    scores: tuple[float, ...] | None = None
    """A teacher's score of each document."""


@dataclass(frozen=True)
class Collection:
    """Queries to evaluate on."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    answers: tuple[Mapping[int, int], ...]
    """For each query, the relevance of documents by their places."""
    listed: tuple[tuple[int, ...], ...]
    """For each query, the documents of its own row, which a reranker orders."""


def read_ranked(names: Sequence[str], data: DataSettings, base: Path) -> Iterator[Ranked]:
    """All queries with their documents, in order; a judged collection gives one for each relevant document.

    Args:
        names: paths or globs, relative to ``base``; a file in the folder ``qrels`` of a collection in BEIR's
            layout stands for its judged queries.
        data: their format and columns.
        base: a folder.

    Raises:
        InvalidRequest: a file does not exist, has no known format, or lacks a column.
        InvalidText: a file is damaged, or a row lacks a text.
        MissingExtra: the format needs packages that are not installed.
    """
    for path in labeled_files(names, base):
        if isinstance(path, Path) and path.parent.name == "qrels":
            yield from _judged(path)
            continue
        for where, row in table_rows(path, data):
            yield _row(str(where), row, data)


def _row(where: str, row: Mapping[str, Any], data: DataSettings) -> Ranked:
    query, positive = (_text(where, row, getattr(data, name), name) for name in ("query", "positive"))
    columns = [name for name in NEGATIVES if name in row] if data.negative is None else [data.negative]
    negatives: list[str] = []
    for column in columns:
        value = value_under(column, row, where, "negative")
        texts = [value] if isinstance(value, str) else value
        if texts is None or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InvalidText(f"{where} has {quoted(texts)} under {column!r}; give a text or a list of texts")
        negatives += texts
    documents = (positive, *negatives)
    scores = None
    if data.scores is not None:
        scores = value_under(data.scores, row, where, "scores")
        numbers = isinstance(scores, list | tuple) and all(isinstance(score, int | float) for score in scores)
        if not numbers or len(scores) != len(documents):
            raise InvalidText(
                f"{where} has {quoted(scores)} under {data.scores!r}; give a list of {len(documents)} "
                "numbers, one for the positive document and each negative"
            )
        scores = tuple(map(float, scores))
    return Ranked(where, query, documents, scores)


def _text(where: str, row: Mapping[str, Any], column: str, option: str) -> str:
    text = value_under(column, row, where, option)
    if not isinstance(text, str) or not text.strip():
        raise InvalidText(f"{where} has no text under {column!r}; give a string")
    return text


def _judged(path: Path) -> Iterator[Ranked]:
    """One row for each document that a query is judged to be answered by, in the order of the judgments."""
    folder, judgments = path.parent.parent, _judgments(path)
    queries = {str(row["_id"]): row["text"] for _, row in json_rows(_beside(folder, "queries"))}
    judged_ids = {document for documents_of_query in judgments.values() for document in documents_of_query}
    documents = {name: text for name, text in _documents(folder) if name in judged_ids}
    for query, relevances in judgments.items():
        for document, relevance in relevances.items():
            if relevance < 1:
                continue
            where = f"query {query} of {path}"
            if query not in queries or document not in documents:
                raise InvalidText(f"{where} names document {document}, and one of both is not in {folder}")
            yield Ranked(where, queries[query], (documents[document],))


def _judgments(path: Path) -> dict[str, dict[str, int]]:
    judgments: dict[str, dict[str, int]] = defaultdict(dict)
    for where, row in tsv_rows(path):
        try:
            judgments[row["query-id"]][row["corpus-id"]] = int(row["score"])
        except (KeyError, ValueError):
            raise InvalidText(
                f"{where} is no judgment; give the columns query-id, corpus-id and score, as in BEIR"
            ) from None
    return judgments


def _documents(folder: Path) -> Iterator[tuple[str, str]]:
    for _, row in json_rows(_beside(folder, "corpus")):
        yield str(row["_id"]), " ".join(part for part in (row.get("title"), row["text"]) if part)


def _beside(folder: Path, name: str) -> Path:
    """The file of that name in a collection, compressed or not."""
    for ending in ("", *COMPRESSED):
        path = folder / f"{name}.jsonl{ending}"
        if path.exists():
            return path
    raise InvalidRequest(f"{folder} has no {name}.jsonl, which a collection in BEIR's layout needs")


def read_collection(names: Sequence[str], data: DataSettings, base: Path, most: int | None) -> Collection:
    """The dev data: every different query, and all documents of the files to find its answers in.

    Args:
        names: see `read_ranked`; of a judged collection all of its documents count, answers or not.
        data: formats and columns.
        base: a folder.
        most: documents at most; answers are always kept, and others in their order.

    Raises:
        UnmaskError: see `read_ranked`.
    """
    answers: dict[str, dict[str, int]] = {}
    listed: dict[str, dict[str, None]] = {}
    others: dict[str, None] = {}
    for ranked in read_ranked(names, replace(data, scores=None), base):
        answers.setdefault(ranked.query, {})[ranked.documents[0]] = 1
        listed.setdefault(ranked.query, {}).update(dict.fromkeys(ranked.documents))
        others.update(dict.fromkeys(ranked.documents[1:]))
    for path in labeled_files(names, base):
        if isinstance(path, Path) and path.parent.name == "qrels":
            others.update(dict.fromkeys(text for _, text in _documents(path.parent.parent)))
    texts = dict.fromkeys(text for relevances in answers.values() for text in relevances)
    for text in others:
        if most is not None and len(texts) >= most:
            break
        texts[text] = None
    place = {text: number for number, text in enumerate(texts)}
    return Collection(
        tuple(answers),
        tuple(place),
        tuple({place[text]: value for text, value in relevances.items()} for relevances in answers.values()),
        tuple(tuple(place[text] for text in row if text in place) for row in listed.values()),
    )


Vectors = NDArray[np.float32]

TEXTS_AT_ONCE = 2048
"""Texts that the teacher encodes between two writes."""


def read_texts(names: Sequence[str], data: DataSettings, base: Path) -> list[str]:
    """All texts of files, in order: of a row its text, or its query, positive document and negatives.

    Raises:
        InvalidRequest: a file does not exist, or has none of the columns.
        InvalidText: a file is damaged, or a text is not a string.
    """
    return [text for path in labeled_files(names, base) for text in _texts(path, data)]


def _texts(path: Path | Rows, data: DataSettings) -> Iterator[str]:
    negatives = NEGATIVES if data.negative is None else (data.negative,)
    for where, row in table_rows(path, data):
        columns = [data.text] if data.text in row else [data.query, data.positive, *negatives]
        values = [row[column] for column in columns if column in row]
        for value in values or [value_under(data.text, row, where, "text")]:
            for text in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(text, str) or not text.strip():
                    raise InvalidText(f"{where} has a text that is empty or no string; give strings")
                yield text


def stored_vectors(path: Path, texts: int) -> Vectors:
    """The vectors of a .npy file, one for each text; kept on disk.

    Raises:
        InvalidRequest: it cannot be read, or does not hold so many vectors.
    """
    try:
        vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read {path}, which retrieval.teacher_vectors names: {error}") from None
    if vectors.ndim != 2 or len(vectors) != texts or vectors.dtype.kind != "f":
        raise InvalidRequest(
            f"{path} holds {vectors.dtype} numbers of shape {vectors.shape}, and the training data have "
            f"{texts:,} texts; give one vector of floating-point numbers for each, in their order"
        )
    return vectors


def teacher_vectors(name: str, texts: Sequence[str], base: Path, out: Path, say: Say) -> Vectors:
    """The vectors of a teacher's checkpoint, computed once and kept in the run's folder.

    Raises:
        InvalidRequest: the checkpoint gives no vector for a text.
        CheckpointError: it cannot be used.
        OutputError: the disk is full or read-only.
    """
    checkpoint = read_checkpoint(source(name, base))
    if not isinstance(checkpoint.head, PooledVector):
        raise InvalidRequest(
            f"retrieval.teacher is {name}, which does not define one vector of a text; name a sentence "
            "embedder"
        )
    digest = hashlib.sha256()
    for part in (fingerprint(checkpoint, ()), *texts):
        digest.update(part.encode() + b"\0")
    path = out / f"teacher-{digest.hexdigest()[:16]}.npy"
    if path.exists():
        return stored_vectors(path, len(texts))
    say(f"{checkpoint.source.name} encodes {len(texts):,} texts once")
    engine = TorchEngine(build(checkpoint).eval())
    vectors_QE = np.empty((len(texts), checkpoint.head.width(checkpoint.spec)), dtype=np.float32)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        block = texts[start : start + TEXTS_AT_ONCE]
        encodings = checkpoint.tokenizer.encode_batch(
            block, max_tokens=checkpoint.max_tokens, truncation="end"
        )
        vectors_QE[start : start + len(block)] = embed(engine, checkpoint.head, encodings)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(path) as partial, partial.open("wb") as stream:
            np.save(stream, vectors_QE)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    return stored_vectors(path, len(texts))
