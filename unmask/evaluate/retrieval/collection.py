"""Test collections in BEIR's layout, and the index of one: new in a temporary folder, or kept and reused."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from unmask.base.arguments import check_choice
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, InvalidText
from unmask.models.load import Model
from unmask.search.documents import Document, Skipped, read_documents
from unmask.search.documents.read import BEIR_CORPUS, BEIR_JUDGMENTS, BEIR_QUERIES
from unmask.search.index import Index, Models, remove_if_empty
from unmask.search.settings import ModelIdentity, PassageSettings, load_again
from unmask.search.values import Added
from unmask.text.lines import COMPRESSED
from unmask.text.rows import json_rows, tsv_rows

Judgments = Mapping[str, Mapping[str, int]]
"""For each query the grade of each judged document; above 0 it is relevant."""

COLUMNS = ("query-id", "corpus-id", "score")

PassageMode = Literal["whole", "window", "late"]
"""How a document becomes passages: one, of which models read the beginning; several that are embedded each on
its own; or several by late chunking. A document's score is that of its best passage."""


@dataclass(frozen=True)
class Judged:
    """A test collection. Only its queries are in memory."""

    name: str
    """That of its folder."""
    corpus_path: Path
    queries: Mapping[str, str]
    """The text of each query by its id."""
    split_paths: Mapping[str, Path]
    """The file of judgments of each split, such as ``test``."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order."""
        return tuple(self.split_paths)

    def corpus(self) -> Iterator[Document | Skipped]:
        """The documents, one at a time."""
        return read_documents([self.corpus_path], field="text", id_field="_id")

    def judgments(self, split: str) -> Judgments:
        """The judgments of a split.

        Raises:
            InvalidRequest: there is no such split, or one of its queries is unknown.
            InvalidText: the file cannot be read, or it is not in BEIR's layout.
        """
        if split not in self.split_paths:
            raise InvalidRequest(f"{self.name} has no split {split!r}; it has: {', '.join(self.splits)}")
        path = self.split_paths[split]
        judgments: dict[str, dict[str, int]] = {}
        for name, row in tsv_rows(path):
            if any(column not in row for column in COLUMNS):
                raise InvalidText(
                    f"{path} has the columns {', '.join(row)}; its first line must name {', '.join(COLUMNS)}"
                )
            query, document, grade = (row[column] for column in COLUMNS)
            if query not in self.queries:
                raise InvalidRequest(f"{name} judges the query {query!r}, which the queries do not hold")
            try:
                judgments.setdefault(query, {})[document] = int(grade)
            except ValueError:
                raise InvalidText(f"{name} has the score {grade!r}; give a whole number") from None
        if not judgments:
            raise InvalidText(f"{path} holds no judgments; name another split")
        return judgments


def read_beir(folder: Path) -> Judged:
    """A collection in BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``.

    Each file may be compressed (``.xz``, ``.gz``).

    Raises:
        InvalidRequest: a file is missing, or two queries have the same id.
        InvalidText: the queries cannot be read.
    """
    corpus, path = _present(folder, BEIR_CORPUS), _present(folder, BEIR_QUERIES)
    queries: dict[str, str] = {}
    for place, row in json_rows(path):
        id_, text = row.get("_id"), row.get("text")
        if not isinstance(id_, str | int) or not isinstance(text, str):
            raise InvalidText(f"{place} has no _id and text; give both for each query")
        if str(id_) in queries:
            raise InvalidRequest(f"{place} has the id {id_!r} of an earlier query; give each query its own")
        queries[str(id_)] = text
    splits = {}
    for entry in sorted((folder / BEIR_JUDGMENTS).glob("*.tsv*")):
        name, _, ending = entry.name.partition(".tsv")
        if ending in ("", *COMPRESSED):
            splits[name] = entry
    if not splits:
        raise InvalidRequest(
            f"{folder / BEIR_JUDGMENTS} holds no judgments (SPLIT.tsv); a collection needs some to be scored"
        )
    return Judged(folder.resolve().name, corpus, queries, splits)


def _present(folder: Path, name: str) -> Path:
    for ending in ("", *COMPRESSED):
        if (path := folder / f"{name}{ending}").is_file():
            return path
    raise InvalidRequest(
        f"{folder} holds no {name}; name a folder in BEIR's layout: corpus.jsonl, queries.jsonl and "
        "qrels/SPLIT.tsv"
    )


@dataclass(frozen=True)
class CollectionSettings:
    """What the index of a collection is made with. An index that exists keeps its own, and refuses others."""

    passages: PassageMode | None = None
    """None is ``"whole"`` for a new index, as in most published figures."""
    passage_tokens: int | None = None
    overlap_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.passages is not None:
            check_choice("passages", self.passages, get_args(PassageMode))

    def named(self) -> dict[str, Any]:
        """As arguments of `Index.create`."""
        passages = self.passages or "whole"
        return {
            "passage_tokens": self.passage_tokens,
            "overlap_tokens": self.overlap_tokens or 0,
            "whole_documents": passages == "whole",
            "chunking": "late" if passages == "late" else "windows",
        }

    def require(self, path: Path, passages: PassageSettings) -> None:
        """Refuse an index that was made with other passages.

        Raises:
            InvalidRequest: names what differs.
        """
        pairs = (
            ("passages", passage_mode(passages), self.passages),
            ("passage_tokens", passages.max_tokens, self.passage_tokens),
            ("overlap_tokens", passages.overlap_tokens, self.overlap_tokens),
        )
        for name, used, requested in pairs:
            if requested is not None and requested != used:
                raise InvalidRequest(
                    f"the index {path} was made with {name} {used} and {requested} is asked for; name a new "
                    f"folder, or leave {name} out"
                )


def passage_mode(passages: PassageSettings) -> PassageMode:
    """How the documents of an index became passages."""
    if passages.whole:
        return "whole"
    return "late" if passages.chunking == "late" else "window"


@dataclass(frozen=True, eq=False)
class IndexedCollection:
    """An index of all documents of a collection."""

    judged: Judged
    index: Index
    added: Added
    """What was computed; nothing of documents that the index had."""
    seconds: float


@contextmanager
def collection_index(
    judged: Judged,
    model: Models = (),
    folder: str | Path | None = None,
    settings: CollectionSettings | None = None,
    *,
    sources: Sequence[str] = (),
    loader: Callable[[ModelIdentity], Model] = load_again,
) -> Iterator[Index]:
    """The index of a collection, new or opened; `add_collection` fills it.

    A new one that is still empty when an error, or Ctrl-C, stops the work is removed.

    Args:
        judged: the collection.
        model: one model or several. None for an index that exists: those that it was made with are loaded.
            None for a new one: it has BM25 alone.
        folder: where the index is kept. One that exists is brought up to date, so that what was stopped is
            resumed; None for a temporary folder.
        settings: the passages.
        sources: see `Index.create`.
        loader: see `Index.open`.

    Raises:
        InvalidRequest: the index was made with another model or other passages, or it has documents that the
            collection does not have.
    """
    settings = settings or CollectionSettings()
    with _place(folder) as path:
        if holds_files(path):
            index = Index.open(path, model, loader=loader)
            settings.require(path, index.settings.passages)
            _check_documents(index, judged)
            yield index
            return
        index = Index.create(path, model, sources=sources, **settings.named())
        try:
            yield index
        except BaseException:
            remove_if_empty(path)
            raise


def add_collection(index: Index, judged: Judged, *, progress: Progress | None = None) -> IndexedCollection:
    """Add all documents of a collection; those that the index has are not computed again.

    Raises:
        InvalidRequest: the collection has no documents.
    """
    began = time.monotonic()
    added = index.add(judged.corpus(), progress=progress)
    if not len(index):
        raise InvalidRequest(f"the corpus of {judged.name} holds no documents; name another folder")
    return IndexedCollection(judged, index, added, round(time.monotonic() - began, 3))


def holds_files(path: Path) -> bool:
    """Whether there is something at this path already."""
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


@contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with TemporaryDirectory(prefix="unmask-retrieval-") as temporary:
        yield Path(temporary) / "index"


def _check_documents(index: Index, judged: Judged) -> None:
    """Refuse an index of something else, which the collection's documents would be mixed with.

    Raises:
        InvalidRequest: the index has a document that the collection does not have.
    """
    if not len(index):
        return
    ids = {document.id for document in judged.corpus() if isinstance(document, Document)}
    others = [id for id in index.ids if id not in ids]
    if others:
        raise InvalidRequest(
            f"the index {index.path} has {len(others):,} documents that {judged.name} does not have, such as "
            f"{others[0]!r}; name another folder for the index"
        )
