"""Sentences with parts of speech from CoNLL-U files, the format of Universal Dependencies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InvalidRequest, InvalidText
from unmask.measure.probes.files import files_in, opened, plain_name
from unmask.text import Line, read_lines

COLUMNS = 10
PARTS = ("train", "dev", "test")


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
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")
    files = files_in(folder, [".conllu"])
    return {part: _part(folder, files, part, limit) for part in PARTS}


def _part(folder: Path, files: list[Path], part: str, limit: int | None) -> list[TaggedSentence]:
    found = [path for path in files if plain_name(path).endswith(f"{part}.conllu")]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InvalidRequest(f"{folder} must hold one file *{part}.conllu (or .conllu.xz); it has: {names}")
    sentences: list[TaggedSentence] = []
    for sentence in read_conllu(found[0]):
        sentences.append(sentence)
        if len(sentences) == limit:
            break
    if not sentences:
        raise InvalidRequest(f"{found[0]} holds no sentence; name another folder (--data)")
    return sentences


def read_conllu(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of one file.

    Multiword tokens (``3-4``, "don't") are skipped, because their words follow with their own tags ("do",
    "n't"). Empty nodes (``8.1``) are skipped, because they have no text.

    Raises:
        InvalidText: the file cannot be read, or a line does not have ten columns, the next number, a form and
            a part of speech.
    """
    words: list[str] = []
    tags: list[str] = []
    with opened(path) as stream:
        # A blank line ends a sentence; blank lines are omitted, so a gap in line numbers shows one.
        last = 0
        for line in read_lines(stream, str(path), blank="skip"):
            if line.number > last + 1 and words:
                yield TaggedSentence(tuple(words), tuple(tags))
                words, tags = [], []
            last = line.number
            if line.text.startswith("#"):
                continue
            word = _word(line, len(words) + 1)
            if word is not None:
                words.append(word[0])
                tags.append(word[1])
    if words:
        yield TaggedSentence(tuple(words), tuple(tags))


def _word(line: Line, expected: int) -> tuple[str, str] | None:
    """Form and tag of a word; None if the line is not a word."""
    columns = line.text.split("\t")
    if len(columns) != COLUMNS:
        raise InvalidText(f"{line} has {len(columns)} columns; CoNLL-U has {COLUMNS}, separated by tabs")
    number, form, tag = columns[0], columns[1], columns[3]
    if "-" in number or "." in number:
        return None
    if number != str(expected):
        raise InvalidText(f"{line} is word {number!r} where word {expected} should be")
    if not form.strip() or tag in ("", "_"):
        raise InvalidText(f"{line} has no {'part of speech' if form.strip() else 'form'}")
    return form, tag
