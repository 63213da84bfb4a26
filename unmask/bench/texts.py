"""Benchmark texts of chosen lengths in tokens: real ones from a file, or invented ones."""

import itertools
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest, InvalidText
from unmask.text import Tokenizer, read_lines

MEDIAN_TOKENS, LONGEST_TOKENS, SPREAD = 28, 256, 0.8
"""Lengths of mixed texts are log-normal; SPREAD is the standard deviation of the logarithm."""
QUERY_TOKENS = 12
LINES_AT_ONCE = 256


@dataclass(frozen=True)
class Texts:
    """Texts and their lengths in the model's tokens."""

    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    """Tokens of each text, special tokens included."""
    source: str

    @property
    def summary(self) -> str:
        """For people."""
        lengths = self.tokens
        return (
            f"{len(lengths):,} texts, {sum(lengths):,} tokens, median {int(np.median(lengths))}, "
            f"longest {max(lengths)}, from {self.source}"
        )


def mixed_lengths(count: int, longest: int, seed: int) -> NDArray[np.int64]:
    """Target lengths in tokens: median 28, at most ``longest``, in random order."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.normal(np.log(MEDIAN_TOKENS), SPREAD, count)).round()
    lengths = np.clip(drawn, min(4, longest), longest).astype(np.int64)
    lengths[0] = longest
    return rng.permutation(lengths)


def of_lengths(
    tokenizer: Tokenizer, lengths: Sequence[int] | NDArray[np.int64], lines: Iterable[str], source: str
) -> Texts:
    """Texts of about these many tokens: the words of ``lines`` in their order, from the beginning again
    when they are used up.

    A text ends before the word that would make it longer than wanted, so it may have a few tokens less.

    Raises:
        InvalidRequest: there is no word in the lines.
    """
    special = int(tokenizer.encode("a").special.sum())
    words = _endless(tokenizer, list(lines), source)
    held = next(words)
    texts: list[str] = []
    for length in lengths:
        chosen, left = [held[0]], int(length) - special - held[1]
        held = next(words)
        while held[1] <= left:
            chosen.append(held[0])
            left -= held[1]
            held = next(words)
        texts.append(" ".join(chosen))
    longest = int(max(lengths))
    encodings = tokenizer.encode_batch(texts, max_tokens=longest, truncation="end")
    return Texts(tuple(texts), tuple(map(len, encodings)), source)


def _endless(tokenizer: Tokenizer, lines: list[str], source: str) -> Iterator[tuple[str, int]]:
    """Words of the lines, repeated endlessly, each with its number of tokens."""
    found = False
    for first in itertools.cycle(range(0, max(len(lines), 1), LINES_AT_ONCE)):
        for encoding in tokenizer.encode_batch(lines[first : first + LINES_AT_ONCE]):
            starts = encoding.offsets[~encoding.special, 0]
            at = 0
            for word in encoding.text.split():
                begin = encoding.text.index(word, at)
                at = begin + len(word)
                count = int(((starts >= begin) & (starts < at)).sum())
                found = found or count > 0
                if count:
                    yield word, count
        if not found and first + LINES_AT_ONCE >= len(lines):
            raise InvalidRequest(f"{source} holds no word to make texts of")


def invented_lines(tokenizer: Tokenizer, seed: int, count: int = 4096) -> list[str]:
    """Lines of random words of the vocabulary, eight each, for a run without a file of texts."""
    marks = ("Ġ", "▁")
    pieces = [tokenizer.engine.id_to_token(i) or "" for i in range(tokenizer.vocabulary_size)]
    plain = [piece.lstrip("".join(marks)) for piece in pieces if not piece.startswith("##")]
    words = sorted({piece for piece in plain if piece.isascii() and piece.isalpha() and piece.islower()})
    rng = np.random.default_rng(seed)
    long_enough = np.array([word for word in words if len(word) > 2] or words or ["a"])
    return [" ".join(row) for row in long_enough[rng.integers(len(long_enough), size=(count, 8))].tolist()]


def lines_of(path: Path) -> list[str]:
    """The lines of a file that hold text.

    Raises:
        InvalidText: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            return [line.text for line in read_lines(stream, str(path), blank="skip")]
    except OSError as error:
        raise InvalidText(f"cannot read {path}: {error.strerror}") from None


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with human similarity ratings from 0 to 5."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    scores: tuple[float, ...]


def sts_b(data: Path) -> ScoredPairs:
    """The test part of STS-B (Cer et al. 2017) from a folder of data sets, as its authors released it.

    Raises:
        InvalidRequest: it is not there.
    """
    path = data / "glue" / "STS-B" / "sts-test-gold.tsv.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return ScoredPairs(
            tuple(row[5] for row in rows),
            tuple(row[6] for row in rows),
            tuple(float(row[4]) for row in rows),
        )
    except (OSError, EOFError, lzma.LZMAError, IndexError, ValueError) as error:
        raise InvalidRequest(f"cannot read STS-B from {path}: {error}") from None


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    ranks = []
    for values in (left, right):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks.append((last - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
