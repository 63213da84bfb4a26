"""The examples of a head with certain words: found by reading the texts that contain them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.corpus.batch import EqualLengthBatch
from unmask.interpret.corpus.measure import CorpusStatistics, Example, batches
from unmask.interpret.corpus.patterns import PATTERNS, relations
from unmask.interpret.corpus.statistics import HeadTotals
from unmask.interpret.watch import Watch, unwatched
from unmask.text import Encoding
from unmask.text.borders import occurrences

MOST_READ = 300
"""Texts with the words that are read: the first of the corpus, which are a sample of all; a few seconds."""


@dataclass(frozen=True)
class FoundExamples:
    """The examples with the words."""

    examples: tuple[Example, ...]
    matching: int
    """Texts of the corpus that have the words."""
    read: int
    """How many of these were read."""


def find_examples(
    encoder: Encoder,
    statistics: CorpusStatistics,
    layer: int,
    head: int,
    *,
    pattern: str = "edge",
    query: str | None = None,
    key: str | None = None,
    top: int = 10,
    watch: Watch | None = None,
) -> FoundExamples:
    """The texts in which a head does something most from, or to, the tokens of a certain word.

    Args:
        encoder: the one that was measured.
        statistics: of the corpus.
        layer: which.
        head: which.
        pattern: one of `PATTERNS`.
        query: a word or words, upper and lower case alike, that the query is a token of; None: any.
        key: the same of the key.
        top: how many examples.
        watch: called after each layer of a batch with the texts read and in all.

    Raises:
        InvalidRequest: no such layer, head or pattern, or neither ``query`` nor ``key`` has a word.
        Cancelled: ``watch`` stopped the work.
    """
    statistics.examples(layer, head, pattern, 1)  # refuses a head that is not there
    check_choice("pattern", pattern, PATTERNS)
    wanted = [word.strip() if word else "" for word in (query, key)]
    if not any(wanted):
        raise InvalidRequest("no word was given; give the word of the query or of the key")
    texts = statistics.corpus.texts
    numbers = [
        number
        for number, one in enumerate(texts)
        if all(not word or any(occurrences(one.text, word)) for word in wanted)
    ]
    some = numbers[:MOST_READ]
    totals = HeadTotals.empty(1, 1, top)
    encodings = {number: statistics.encode(texts[number].text) for number in some}
    done, watched = 0, watch or unwatched
    for group in batches(encodings, some, encoder):
        chosen = [encodings[number] for number in group]

        def ticked(what: str, layers: int, of: int, done: int = done, count: int = len(group)) -> None:
            watched("reading texts with these words", done + count * layers // of, len(some))

        batch = EqualLengthBatch.run(encoder, chosen, ticked)
        marks = [_marked(chosen, word) if word else None for word in wanted]
        related = relations(chosen).only(*marks)
        p_SHNN, _ = batch.attention(layer)
        totals.rank(0, slice(0, 1), p_SHNN[:, head : head + 1], related, np.array(group))
        done += len(group)
    found = CorpusStatistics(statistics.corpus, totals, statistics.truncated, statistics.encode)
    return FoundExamples(found.examples(0, 0, pattern, top), len(numbers), len(some))


def _marked(encodings: Sequence[Encoding], words: str) -> NDArray[np.bool_]:
    """The tokens that share a character with an occurrence of words, (S, N)."""
    found = np.zeros((len(encodings), len(encodings[0])), dtype=np.bool_)
    for text, encoding in enumerate(encodings):
        start_N, end_N = encoding.offsets.T
        for start, end in occurrences(encoding.text, words):
            found[text] |= (start_N < end) & (end_N > start) & ~encoding.special
    return found
