"""Workloads: the same texts and ids for all engines, created before anything is timed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.bench.peers.engine import Answers, PeerEngine
from unmask.bench.texts import LONGEST_TOKENS, QUERY_TOKENS, Texts, mixed_lengths, of_lengths
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer

KINDS = ("mixed", "online", "query", "document")
ONLINE_TEXTS = 32
"""Texts per call of the ``online`` workload, unsorted."""
QUERIES = 20
"""Calls per round, each with a single query."""


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
    ids = random_ids(tokenizer, length, seed)
    return Workload(
        f"document {length}", f"one text of {length} random ids", "documents", (), tuple(ids.tolist()), length
    )


def random_ids(tokenizer: Tokenizer, length: int, seed: int) -> NDArray[np.int64]:
    """Ids drawn uniformly from the vocabulary, without special tokens."""
    special = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values()}
    plain = np.array([i for i in range(tokenizer.vocabulary_size) if i not in special], dtype=np.int64)
    return np.random.default_rng([seed, length]).choice(plain, length)
