"""Sentences of one word in several senses, from the package or from a user's file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from unmask.errors import InvalidRequest, InvalidText
from unmask.interpret.geometry.intervals import generator
from unmask.text import read_lines
from unmask.text.borders import occurrences

FEWEST = 4
"""Minimum number of sentences per sense."""

Deal = Literal["within", "across"]


@dataclass(frozen=True)
class Sentence:
    """One occurrence of the word."""

    text: str
    sense: str
    start: int
    """Offset of the word in the text, in characters."""
    end: int


@dataclass(frozen=True)
class SenseSet:
    """Sentences of a word in several senses. Created and checked by `word_sense_set`."""

    word: str
    sentences: tuple[Sentence, ...]
    control: str = "none"
    """How the sentences were shuffled, see `dealt`."""

    @property
    def senses(self) -> tuple[str, ...]:
        """Names of the senses, in alphabetical order."""
        return tuple(sorted({one.sense for one in self.sentences}))

    def dealt(self, how: Deal, seed: int = 0) -> "SenseSet":
        """The sentences with all other words shuffled; the word itself keeps its position, counted in words.

        ``within`` shuffles words within each sentence, which removes word order and keeps the context words.
        ``across`` shuffles words among all sentences, which removes everything that distinguishes senses: any
        remaining separation is not meaning.
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
    """A set from pairs of (sense, sentence); the word is located at its first whole-word match, ignoring
    case.

    Raises:
        InvalidRequest: the word is blank, a sentence does not contain it, or there are fewer than two senses
            or fewer than four sentences of a sense.
    """
    if not word.strip():
        raise InvalidRequest("the word is blank; name the word whose senses are compared")
    sentences = []
    for number, (sense, text) in enumerate(pairs, 1):
        found = next(occurrences(text, word), None)
        if found is None:
            raise InvalidRequest(
                f"sentence {number} of {source} does not contain the word {word!r}: {text[:60]!r}"
            )
        sentences.append(Sentence(text, sense, *found))
    made = SenseSet(word, tuple(sentences))
    if len(made.senses) < 2:
        raise InvalidRequest(
            f"the number of senses of {word!r} in {source} is {len(made.senses)}; give at least two"
        )
    for sense in made.senses:
        count = sum(one.sense == sense for one in sentences)
        if count < FEWEST:
            raise InvalidRequest(
                f"sense {sense!r} of {word!r} has {count} sentences; at least {FEWEST} are needed"
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
    """The words for which the package has sentences."""
    return tuple(_shipped())


def shipped_senses(word: str) -> SenseSet:
    """The sentences that the package has for a word.

    Raises:
        InvalidRequest: it has none.
    """
    if word not in _shipped():
        raise InvalidRequest(
            f"the package has no sentences of {word!r}, only of {', '.join(shipped_words())}; "
            "give a file of your own"
        )
    return word_sense_set(word, _shipped()[word], f"the sentences of {word!r}")


def read_sense_file(path: Path, word: str) -> SenseSet:
    """Read a file of senses and sentences: tab-separated, or JSON lines ``{"sense": ..., "sentence": ...}``.

    Blank lines and lines that begin with # are skipped.

    Raises:
        InvalidRequest: a line has neither format, or the sentences are not a valid set (see
            `word_sense_set`).
        InvalidText: it cannot be read, or is not UTF-8.
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
