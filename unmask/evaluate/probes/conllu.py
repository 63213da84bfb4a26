"""Sentences with parts of speech from CoNLL-U files, the format of Universal Dependencies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes.files import files_in, plain_name
from unmask.text.layouts import conllu_sentences

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
