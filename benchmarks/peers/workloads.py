"""Workloads: the same texts and ids for all engines, created before anything is timed."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engine import Answers, PeerEngine
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer

MEDIAN_TOKENS, LONGEST_TOKENS, SPREAD = 28, 256, 0.8
"""Lengths of mixed texts are log-normal; SPREAD is the standard deviation of the logarithm."""
QUERY_TOKENS = 12
LINES_AT_ONCE = 256

KINDS = ("mixed", "online", "query", "document")
ONLINE_TEXTS = 32
"""Texts per call of the ``online`` workload, unsorted."""
QUERIES = 20
"""Calls per round, each with a single query."""


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


@dataclass(frozen=True)
class Workload:
    """Calls of one kind that an engine must answer."""

    name: str
    what: str
    """Description for people."""
    answers: Answers
    texts: tuple[tuple[str, ...], ...]
    """The texts of each call; empty if ids are given."""
    ids: tuple[int, ...]
    """The ids of the only document; empty if texts are given."""
    tokens: int
    """Tokens of all calls, with special tokens, without padding."""

    def run(self, engine: PeerEngine) -> NDArray[np.float32]:
        """Run all calls; return their embeddings (S, E), or the states of the document (N, D)."""
        if self.answers == "documents":
            return engine.hidden(np.array(self.ids, dtype=np.int64))
        return np.concatenate([engine.embed(texts) for texts in self.texts])

    @property
    def first(self) -> "Workload":
        """Its first text alone, or its document."""
        return replace(self, texts=tuple(texts[:1] for texts in self.texts[:1]))

    def write(self, path: Path) -> None:
        """Write the workload to a file for another process."""
        value = {"texts": self.texts, "ids": self.ids, "answers": self.answers}
        path.write_text(json.dumps(value), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Workload":
        """Read what `write` wrote; name and counts are not stored."""
        value = json.loads(path.read_text(encoding="utf-8"))
        return cls("", "", value["answers"], tuple(map(tuple, value["texts"])), tuple(value["ids"]), 0)


def make(
    kinds: Sequence[str],
    tokenizer: Tokenizer,
    lines: Sequence[str],
    source: str,
    *,
    count: int,
    lengths: Sequence[int],
    longest: int | None,
    seed: int,
) -> list[Workload]:
    """The workloads of these kinds, in the order given.

    Args:
        kinds: of `KINDS`.
        tokenizer: the tokenizer of the model.
        lines: lines from which texts are made.
        source: the name of these lines in a report.
        count: number of texts in ``mixed``; ``online`` has one call of 32 texts per hundred of them.
        lengths: tokens of each document.
        longest: the maximum length of the model; None without a limit.
        seed: seed of lengths and ids.

    Raises:
        InvalidRequest: a kind is unknown, there is no text, or a document is longer than the model reads.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InvalidRequest(f"there is no workload {unknown[0]!r}; there are {', '.join(KINDS)}")
    if count < 1:
        raise InvalidRequest(f"the number of texts is {count}; it must be at least 1")
    limit = LONGEST_TOKENS if longest is None else min(longest, LONGEST_TOKENS)
    made: list[Workload] = []
    if {"mixed", "online", "query"} & set(kinds):
        mixed = of_lengths(tokenizer, mixed_lengths(count, limit, seed), lines, source)
    for kind in kinds:
        match kind:
            case "mixed":
                made.append(_of_texts("mixed", mixed.summary, [mixed.texts], mixed.tokens))
            case "online":
                made.append(_online(mixed, max(1, count // 100)))
            case "query":
                made.append(_query(tokenizer, lines, source, limit))
            case _:
                made += [_document(tokenizer, length, longest, seed) for length in lengths]
    return made


def _of_texts(name: str, what: str, calls: list[tuple[str, ...]], tokens: Sequence[int]) -> Workload:
    return Workload(name, what, "texts", tuple(calls), (), sum(tokens))


def _online(mixed: Texts, calls: int) -> Workload:
    ends = range(ONLINE_TEXTS, (calls + 1) * ONLINE_TEXTS, ONLINE_TEXTS)
    texts = [mixed.texts[end - ONLINE_TEXTS : end] for end in ends]
    kept = [part for part in texts if part]
    what = f"{len(kept)} calls of {ONLINE_TEXTS} of these texts as they come"
    return _of_texts("online", what, kept, mixed.tokens[: calls * ONLINE_TEXTS])


def _query(tokenizer: Tokenizer, lines: Sequence[str], source: str, limit: int) -> Workload:
    tokens = min(QUERY_TOKENS, limit)
    queries = of_lengths(tokenizer, [tokens] * QUERIES, lines, source)
    what = f"{QUERIES} calls of one query of about {tokens} tokens"
    return _of_texts("query", what, [(text,) for text in queries.texts], queries.tokens)


def _document(tokenizer: Tokenizer, length: int, longest: int | None, seed: int) -> Workload:
    if length < 1 or (longest is not None and length > longest):
        most = "any number of" if longest is None else f"1 to {longest}"
        raise InvalidRequest(f"a document of {length} tokens was asked for; this model reads {most}")
    from unmask.bench.benchmark_model import random_ids  # here, because it imports torch

    ids = random_ids(tokenizer, length, seed)
    return Workload(
        f"document {length}", f"one text of {length} random ids", "documents", (), tuple(ids.tolist()), length
    )
