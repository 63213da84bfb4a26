"""Test collections in BEIR's layout: documents, queries, and which documents answer a query."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InvalidRequest, InvalidText
from unmask.search.documents import Document, Skipped, read_documents
from unmask.search.documents.files import BEIR_CORPUS, BEIR_JUDGMENTS, BEIR_QUERIES
from unmask.text.lines import COMPRESSED
from unmask.text.rows import json_rows, tsv_rows

Judgments = Mapping[str, Mapping[str, int]]
"""For each query the grade of each judged document; above 0 it is relevant."""

COLUMNS = ("query-id", "corpus-id", "score")


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
        found: dict[str, dict[str, int]] = {}
        for name, row in tsv_rows(path):
            if any(column not in row for column in COLUMNS):
                raise InvalidText(
                    f"{path} has the columns {', '.join(row)}; its first line must name {', '.join(COLUMNS)}"
                )
            query, document, grade = (row[column] for column in COLUMNS)
            if query not in self.queries:
                raise InvalidRequest(f"{name} judges the query {query!r}, which the queries do not hold")
            try:
                found.setdefault(query, {})[document] = int(grade)
            except ValueError:
                raise InvalidText(f"{name} has the score {grade!r}; give a whole number") from None
        if not found:
            raise InvalidText(f"{path} holds no judgments; name another split")
        return found


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
