"""What benchmarks read: lines of a file or of invented words, random ids, and rated pairs of sentences."""

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest, InvalidText
from unmask.text import Tokenizer, read_lines


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


def random_ids(tokenizer: Tokenizer, length: int, seed: int) -> NDArray[np.int64]:
    """Ids drawn uniformly from the vocabulary, without special tokens."""
    special = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values()}
    plain = np.array([i for i in range(tokenizer.vocabulary_size) if i not in special], dtype=np.int64)
    return np.random.default_rng([seed, length]).choice(plain, length)
