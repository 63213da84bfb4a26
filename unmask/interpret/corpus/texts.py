"""The texts of a corpus: the sentences that come with the package, or the lines of a user's file."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from unmask.base.arguments import listed
from unmask.base.files import check_regular
from unmask.errors import EmptyText, InvalidRequest, InvalidText, quoted
from unmask.text import read_lines
from unmask.text.lines import COMPRESSED, DAMAGED, content, opened

MOST_TEXTS = 50_000
"""Texts of one corpus at most: about a quarter of an hour of the default model on two cores."""

SHIPPED = "sentences of public-domain books"
"""The name of the corpus of the package."""


@dataclass(frozen=True)
class CorpusText:
    """One text, and where it is from."""

    text: str
    source: str
    """A book with its author and year, or a line of a file."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Different texts, in the order of their SHA-256; made by `Corpus.of`.

    The order has nothing to do with the texts, so the first n are a sample of all of them. It does not
    depend on the order in which they were given either, so neither does any result.
    """

    name: str
    texts: tuple[CorpusText, ...]
    repeated: int
    """How many texts were left out because they repeat another one."""

    @classmethod
    def of(cls, name: str, texts: Iterable[CorpusText]) -> "Corpus":
        """A corpus of these texts; of equal texts the source that sorts first is kept.

        Raises:
            EmptyText: there is no text.
            InvalidRequest: there are more than `MOST_TEXTS`.
        """
        by_text: dict[str, CorpusText] = {}
        count = 0
        for text in texts:
            count += 1
            equal = by_text.get(text.text)
            if equal is None or text.source < equal.source:
                by_text[text.text] = text
            if len(by_text) > MOST_TEXTS:
                raise InvalidRequest(f"{name} has more than {MOST_TEXTS:,} texts; give a part of it")
        if not by_text:
            raise EmptyText(f"{name} has no text; a corpus has one text on each line")
        return cls(
            name, tuple(sorted(by_text.values(), key=lambda text: _digest(text.text))), count - len(by_text)
        )

    @classmethod
    def of_strings(cls, texts: Iterable[str], name: str = "the given texts") -> "Corpus":
        """A corpus of strings, whose sources are their numbers."""
        return cls.of(
            name,
            (
                CorpusText(text.strip(), f"text {number}")
                for number, text in enumerate(texts, 1)
                if text.strip()
            ),
        )

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def sha256(self) -> str:
        """A digest of all texts, the same for every order of them."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(_digest(text.text))
        return digest.hexdigest()


@cache
def shipped_corpus() -> Corpus:
    """The sentences that come with the package, eight of each of 378 books; see ``scripts/corpus.py``."""
    path = files("unmask").joinpath("shipped", "corpus", "sentences.jsonl.xz")
    books = [json.loads(line) for line in content(Path(str(path))).decode("utf-8").splitlines()]
    return Corpus.of(
        SHIPPED,
        (
            CorpusText(text, f"{book['title']}, {book['author']}, {book['year']}")
            for book in books
            for text in book["texts"]
        ),
    )


def corpus_of(source: "Corpus | str | Path | Sequence[str] | None") -> Corpus:
    """A corpus, the one of a file, one of a list of texts, or that of the package for None.

    Raises:
        TextError: the file cannot be read, or there is no text.
        InvalidRequest: it is not a file of texts, or there are too many.
    """
    if source is None:
        return shipped_corpus()
    if isinstance(source, Corpus):
        return source
    if isinstance(source, str | Path):
        return read_corpus(source)
    texts = listed("corpus", source)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InvalidText(f"text {number} of the corpus is {quoted(text)}; give strings")
    return Corpus.of_strings(texts)


def read_corpus(path: str | Path) -> Corpus:
    """The corpus of a file: ``.txt`` with one text on each line, or ``.jsonl`` with objects with a ``text``.

    Files may be compressed (``.gz``, ``.xz``). Lines without text are skipped.

    Raises:
        InvalidRequest: the ending of the name is another one, or there are more than `MOST_TEXTS` texts.
        InvalidText: the file cannot be read, is not UTF-8, or a line is not an object with a text.
        EmptyText: there is no text.
    """
    path = Path(path)
    endings = [ending for ending in path.suffixes if ending not in COMPRESSED]
    kind = endings[-1] if endings else ""
    if kind not in (".txt", ".jsonl"):
        raise InvalidRequest(
            f"{path} is not a corpus that can be read; give a .txt file with one text on each line, or a "
            ".jsonl file with a text under the key text on each line"
        )
    check_regular(path, InvalidText)
    try:
        with opened(path) as stream:
            lines = read_lines(stream, str(path), field="text" if kind == ".jsonl" else None, blank="skip")
            return Corpus.of(path.name, (CorpusText(line.text.strip(), str(line)) for line in lines))
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidText(f"cannot read {path}: {reason}") from None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
