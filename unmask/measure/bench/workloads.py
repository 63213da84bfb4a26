"""What engines are given to do: the same texts and ids for all, made before anything is timed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.measure.peers.engine import Answers, PeerEngine
from unmask.measure.texts import LONGEST_TOKENS, QUERY_TOKENS, Texts, mixed_lengths, of_lengths
from unmask.text import Tokenizer

KINDS = ("mixed", "online", "query", "document")
ONLINE_TEXTS = 32
"""Texts of a call that nobody sorted."""
QUERIES = 20
"""Calls of one query each within a round."""


@dataclass(frozen=True)
class Workload:
    """Calls of one kind."""

    name: str
    what: str
    """For people."""
    answers: Answers
    texts: tuple[tuple[str, ...], ...]
    """Of each call; empty where ids are given."""
    ids: tuple[int, ...]
    """Of the one document; empty where texts are given."""
    tokens: int
    """Of all calls, special tokens included, padding not."""

    def run(self, engine: PeerEngine) -> NDArray[np.float32]:
        """All calls; their embeddings (S, E), or the document's states (N, D)."""
        if self.answers == "documents":
            return engine.hidden(np.array(self.ids, dtype=np.int64))
        return np.concatenate([engine.embed(texts) for texts in self.texts])

    def write(self, path: Path) -> None:
        """To a file, for a process of its own."""
        value = {"texts": self.texts, "ids": self.ids, "answers": self.answers}
        path.write_text(json.dumps(value), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Workload":
        """What `write` wrote; name and counts are not kept."""
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
        tokenizer: the model's.
        lines: what texts are made of, from ``source``.
        source: how a report calls the lines.
        count: texts of ``mixed``; ``online`` makes one call of 32 for every hundred.
        lengths: tokens of each document.
        longest: the most tokens that the model reads; None for any number.
        seed: of lengths and ids.

    Raises:
        InvalidRequest: an unknown kind, no texts, or a document longer than the model reads.
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
    """Ids of the vocabulary that are no special token's, each as likely."""
    special = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values()}
    plain = np.array([i for i in range(tokenizer.vocabulary_size) if i not in special], dtype=np.int64)
    return np.random.default_rng([seed, length]).choice(plain, length)
