"""Words with a label each, for probes: from treebanks, CoNLL columns or JSON lines."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes.files import files_in, plain_name
from unmask.text import layouts
from unmask.text.layouts import CONLLU_COLUMNS, columns_of, conllu_sentences
from unmask.text.rows import json_rows

Column = Literal["upos", "xpos", "deprel", "lemma"]
"""The column of CoNLL-U that is the label; relations without what follows a colon."""

PARTS = ("train", "dev", "test")
ENDINGS = (".conllu", ".conll", ".tsv", ".txt", ".jsonl")

TRAIN_SHARE, DEV_SHARE = 70, 15
"""Of 100 sentences of a single file; the others are the test part."""


@dataclass(frozen=True)
class TaggedSentence:
    """Syntactic words in order, with their universal parts of speech (UPOS)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_treebank(folder: Path, limit: int | None = None) -> dict[str, list[TaggedSentence]]:
    """The train, dev and test parts of a treebank: files named ``*train.conllu`` and so on, optionally
    ``.xz``.

    Args:
        folder: the folder of an official release.
        limit: use only the first N sentences of each part.

    Raises:
        InvalidRequest: the folder has no file or several files for a part, a part is empty, or ``limit`` is
            below 1.
        InvalidText: a file cannot be read, or is not CoNLL-U.
    """
    _check_limit(limit)
    files = files_in(folder, [".conllu"])
    treebank = {}
    for part in PARTS:
        path = _file(folder, files, part, ".conllu.xz")
        treebank[part] = list(islice(read_conllu(path), limit))
        if not treebank[part]:
            raise InvalidRequest(f"{path} holds no sentence; name another folder (--data)")
    return treebank


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")


def _file(folder: Path, files: Sequence[Path], part: str, or_ending: str) -> Path:
    matching = [path for path in files if plain_name(path).rpartition(".")[0].endswith(part)]
    if len(matching) != 1:
        names = ", ".join(path.name for path in matching) or "none"
        raise InvalidRequest(f"{folder} must hold one file *{part}.conllu (or {or_ending}); it has: {names}")
    return matching[0]


def read_conllu(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of one file; see `unmask.text.layouts.conllu_sentences`.

    Raises:
        InvalidText: the file cannot be read or is not CoNLL-U, or a word has no form or part of speech.
    """
    for sentence in conllu_sentences(path):
        words, tags = sentence.column("form"), sentence.column("upos")
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
            if not word.strip() or tag in ("", "_"):
                missing = "part of speech" if word.strip() else "form"
                raise InvalidText(f"word {number} of the sentence at {sentence.where} has no {missing}")
        yield TaggedSentence(words, tags)


def read_labeled(
    data: Path, column: Column = "upos", limit: int | None = None
) -> dict[str, list[TaggedSentence]]:
    """The train, dev and test parts of labeled words.

    ``data`` is a folder with one file for each part, whose names end in ``train``, ``dev`` and ``test``
    before the ending, or one file. A single file is divided by a digest of each sentence, so that equal
    sentences are in one part. Files may be compressed:

    - ``.conllu``: the label is ``column``;
    - ``.conll``, ``.tsv``, ``.txt``: a word in the first column and its label in the last, a blank line
      between sentences;
    - ``.jsonl``: objects with ``words`` and ``labels``, two lists of strings of one length.

    Args:
        data: the folder or file.
        column: of CoNLL-U.
        limit: only the first N sentences of each part.

    Raises:
        InvalidRequest: a part is missing or empty, or ``limit`` is below 1.
        InvalidText: a file cannot be read, or a word has no label.
    """
    _check_limit(limit)
    files = files_in(data, ENDINGS)
    if data.is_file():
        divided: dict[str, list[TaggedSentence]] = {part: [] for part in PARTS}
        for sentence in _read(data, column):
            divided[_part_of(sentence)].append(sentence)
        parts = {part: sentences[:limit] for part, sentences in divided.items()}
    else:
        paths = {part: _file(data, files, part, ".conll, .jsonl") for part in PARTS}
        parts = {part: list(islice(_read(path, column), limit)) for part, path in paths.items()}
    for part, sentences in parts.items():
        if not sentences:
            raise InvalidRequest(
                f"the {part} part of {data} has no sentence; give more, or other files (--data)"
            )
    return parts


def _part_of(sentence: TaggedSentence) -> str:
    digest = hashlib.sha256("\n".join(sentence.words).encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") % 100
    if place < TRAIN_SHARE:
        return "train"
    return "dev" if place < TRAIN_SHARE + DEV_SHARE else "test"


def _read(path: Path, column: Column) -> Iterator[TaggedSentence]:
    name = plain_name(path)
    if name.endswith(".conllu"):
        if column not in CONLLU_COLUMNS:
            raise InvalidRequest(f"the column is {column!r}; it can be one of {', '.join(CONLLU_COLUMNS)}")
        for sentence in conllu_sentences(path):
            labels = sentence.column(column)
            if column == "deprel":
                labels = tuple(label.partition(":")[0] for label in labels)
            yield _checked(sentence.column("form"), labels, f"the sentence at {sentence.where}")
    elif name.endswith(".jsonl"):
        for where, row in json_rows(path):
            words, labels = _strings(row.get("words")), _strings(row.get("labels"))
            if not words or len(words) != len(labels):
                raise InvalidText(f"{where} has no words and labels: two lists of strings, equally long")
            yield _checked(words, labels, str(where))
    else:
        for block in layouts.sentences(path):
            columns = [columns_of(line) for line in block.lines]
            words, labels = (tuple(line[place] for line in columns) for place in (0, -1))
            yield _checked(words, labels, f"the sentence at {block.where}")


def _strings(value: object) -> tuple[str, ...]:
    """A list of strings; nothing where it is none."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(value)


def _checked(words: tuple[str, ...], labels: tuple[str, ...], where: str) -> TaggedSentence:
    missing = [word for word, label in zip(words, labels, strict=True) if label == "_" != word or not label]
    if missing:
        raise InvalidText(f"{where} has the word {missing[0]!r} without a label")
    return TaggedSentence(words, labels)
