"""Sentences of one word in several senses: those shipped with the package, or a file of one's own."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from unmask.errors import InvalidRequest, InvalidText
from unmask.interpret.geometry.intervals import generator
from unmask.text import read_lines

FEWEST = 4
"""Sentences of a sense, below which nothing is said of it."""

Deal = Literal["within", "across"]


@dataclass(frozen=True)
class Sentence:
    """One occurrence of the word."""

    text: str
    sense: str
    start: int
    """Where the word begins in the text, in characters."""
    end: int


@dataclass(frozen=True)
class SenseSet:
    """A word in its senses. Made by `word_sense_set`, which checks it."""

    word: str
    sentences: tuple[Sentence, ...]
    control: str = "none"
    """What was done to the sentences, see `dealt`."""

    @property
    def senses(self) -> tuple[str, ...]:
        """Names of the senses, in the order of the alphabet."""
        return tuple(sorted({one.sense for one in self.sentences}))

    def dealt(self, how: Deal, seed: int = 0) -> "SenseSet":
        """The sentences with all other words shuffled, the word itself where it was (counted in words).

        ``within``: among the words of the same sentence, which takes away order and leaves the company that
        the word keeps. ``across``: among all sentences, which leaves nothing that could tell senses apart:
        what separates them even so is not meaning.
        """
        rng = generator(seed)
        parts = [
            (one.text[: one.start].split(), one.text[one.start : one.end], one.text[one.end :].split())
            for one in self.sentences
        ]
        company = [before + after for before, _, after in parts]
        if how == "within":
            mixed = [[words[i] for i in rng.permutation(len(words))] for words in company]
        else:
            pool = [word for words in company for word in words]
            deal = iter([pool[i] for i in rng.permutation(len(pool))])
            mixed = [[next(deal) for _ in words] for words in company]
        made = []
        for one, (before, word, _), words in zip(self.sentences, parts, mixed, strict=True):
            left = " ".join(words[: len(before)])
            start = len(left) + bool(left)
            text = " ".join([*words[: len(before)], word, *words[len(before) :]])
            made.append(replace(one, text=text, start=start, end=start + len(word)))
        return SenseSet(self.word, tuple(made), how)


def word_sense_set(word: str, pairs: Iterable[tuple[str, str]], source: str = "the sentences") -> SenseSet:
    """A set of (sense, sentence); the word is found as a whole word, whatever its case, where it is first.

    Raises:
        InvalidRequest: the word is blank, a sentence is without it, fewer than two senses, or fewer than four
            sentences of one.
    """
    if not word.strip():
        raise InvalidRequest("the word is blank; name the word whose senses are compared")
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    sentences = []
    for number, (sense, text) in enumerate(pairs, 1):
        found = pattern.search(text)
        if found is None:
            raise InvalidRequest(
                f"sentence {number} of {source} is without the word {word!r} as it is written: {text[:60]!r}"
            )
        sentences.append(Sentence(text, sense, *found.span()))
    made = SenseSet(word, tuple(sentences))
    if len(made.senses) < 2:
        raise InvalidRequest(f"{source} name {len(made.senses)} senses of {word!r}; two or more are compared")
    for sense in made.senses:
        count = sum(one.sense == sense for one in sentences)
        if count < FEWEST:
            raise InvalidRequest(
                f"sense {sense!r} of {word!r} has {count} sentences; {FEWEST} or more are needed of each"
            )
    return made


@cache
def _shipped() -> dict[str, list[tuple[str, str]]]:
    content = files("unmask.interpret.geometry").joinpath("senses.tsv").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in content.splitlines():
        if not line.startswith("#"):
            word, sense, sentence = line.split("\t")
            found.setdefault(word, []).append((sense, sentence))
    return found


def shipped_words() -> tuple[str, ...]:
    """The words that the package has sentences for."""
    return tuple(_shipped())


def shipped_senses(word: str) -> SenseSet:
    """The sentences that the package has for a word.

    Raises:
        InvalidRequest: it has none.
    """
    if word not in _shipped():
        raise InvalidRequest(
            f"no sentences of {word!r} are here, only of {', '.join(shipped_words())}; "
            "give a file of your own"
        )
    return word_sense_set(word, _shipped()[word], f"the sentences of {word!r}")


def read_sense_file(path: Path, word: str) -> SenseSet:
    """A file of sense and sentence: tab-separated, or JSON lines ``{"sense": ..., "sentence": ...}``.

    Lines that are blank or begin with # are left out.

    Raises:
        InvalidRequest: a line is neither, or the sentences do not make a set (see `word_sense_set`).
        InvalidText: it cannot be read, or is no UTF-8.
    """
    pairs = []
    try:
        with path.open("rb") as stream:
            for line in read_lines(stream, str(path), blank="skip"):
                if not line.text.startswith("#"):
                    pairs.append(_parsed(line.text, f"line {line.number} of {path}"))
    except OSError as error:
        raise InvalidText(f"cannot read {path}: {error.strerror or error}") from None
    return word_sense_set(word, pairs, str(path))


def _parsed(text: str, where: str) -> tuple[str, str]:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where} is not JSON: {error}") from None
        sense, sentence = value.get("sense"), value.get("sentence")
        if not (isinstance(sense, str) and isinstance(sentence, str)):
            raise InvalidRequest(f'{where} has no text under "sense" and "sentence"')
        return sense, sentence
    sense, tab, sentence = text.partition("\t")
    if not tab:
        raise InvalidRequest(f"{where} has no tab; write the sense, a tab, and the sentence")
    return sense.strip(), sentence
