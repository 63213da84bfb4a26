"""One pass of a corpus through an encoder, in rounds, and the examples of a head with certain words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, one_of, whole_number
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import check_attention
from unmask.interpret.attention.layer_statistics import CLASSES, LABELS, REST, RESTING
from unmask.interpret.corpus.batch import PATTERNS, EqualLengthBatch, relations
from unmask.interpret.corpus.statistics import EXAMPLES, NONE, HeadTotals, read_totals, write_totals
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.overview.figures import BatchWords, FigureCounts
from unmask.text import Encoding, Tokenizer
from unmask.text.borders import occurrences

MOST_TOKENS = 512
"""Longer texts are truncated to their beginnings, and counted: a whole map of each is held for a moment."""

CELLS_AT_ONCE = 1 << 19
"""Probabilities of one layer of a batch: 2 MB in float32, what two cores keep close."""

FIRST_ROUND, LARGEST_ROUND = 128, 1024
"""Texts of the first round and of the largest; each round is twice as long as the one before it."""


@dataclass(frozen=True)
class Example:
    """One text in which a head does something, and the strongest pair of tokens in that relation."""

    text: str
    source: str
    score: float
    """The score of the head in this text, see `unmask.interpret.corpus.batch.BatchRelations`."""
    query: tuple[int, int]
    """Characters of the query in the text."""
    key: tuple[int, int]
    """Characters of the key; (0, 0) for a special token."""
    key_piece: str
    """The key as the vocabulary spells it."""
    weight: float
    """The attention from the query to the key."""
    query_token: int
    key_token: int


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """Every head over the first texts of a corpus: all of them, unless it was stopped.

    Means are over queries, so longer texts count more. Heads that a layer does not have are 0.
    """

    corpus: Corpus
    totals: HeadTotals
    truncated: int
    """Texts of the whole corpus of which only the beginning is read."""
    encode: Callable[[str], Encoding]
    """The tokenizer, as it was used."""
    from_cache: bool = False
    """Whether all of it was read from a file."""

    @property
    def complete(self) -> bool:
        """Whether all texts are in it."""
        return self.totals.texts == len(self.corpus)

    @property
    def entropy(self) -> NDArray[np.float64]:
        """Mean entropy in nats, (L, H)."""
        return self._mean(self.totals.entropy_LH)

    @property
    def entropy_share(self) -> NDArray[np.float64]:
        """Mean entropy as a share of the largest possible one, (L, H)."""
        return self._mean(self.totals.entropy_share_LH)

    @property
    def distance(self) -> NDArray[np.float64]:
        """Mean distance from query to key in tokens, (L, H)."""
        return self._mean(self.totals.distance_LH)

    @property
    def classes(self) -> NDArray[np.float64]:
        """Mean attention to keys of each class of `unmask.interpret.CLASSES`, (L, H, X)."""
        return self._mean(self.totals.classes_LHX)

    @property
    def labels(self) -> NDArray[np.float64]:
        """Share of texts in which a head has each label of `taxonomy.LABELS`, (L, H, B)."""
        return np.asarray(self.totals.labels_LHB / max(1, self.totals.texts))

    @property
    def figures(self) -> FigureCounts:
        """What `unmask.interpret.overview.overview.overview` compares findings with."""
        return self.totals.figures

    def label(self, layer: int, head: int) -> tuple[str, float]:
        """What a head is called, and the share of texts in which it has that label.

        It is the most frequent label, but ``first`` and ``special`` only of a head that does nothing else:
        where another label that says what it attends to has `REST` of the texts, the head is called by that,
        as in a single text.
        """
        shares = self.labels[self._head(layer, head)]
        number = int(shares.argmax())
        if LABELS[number] in RESTING:
            named = np.where(np.isin(LABELS, (*RESTING, "diffuse", "mixed")), 0, shares)
            number = int(named.argmax()) if named.max() >= REST else number
        return LABELS[number], float(shares[number])

    def examples(
        self, layer: int, head: int, pattern: str = "edge", top: SupportsIndex = 10
    ) -> tuple[Example, ...]:
        """The texts in which a head does something most, best first, each text once.

        Args:
            layer: which.
            head: which.
            pattern: one of `PATTERNS`.
            top: how many, at most `EXAMPLES`; there are fewer if no more texts have such a pair of tokens.

        Raises:
            InvalidRequest: no such layer, head or pattern, or ``top`` is out of range.
        """
        where = self._head(layer, head)
        check_choice("pattern", pattern, PATTERNS)
        most = one_of("top", top, EXAMPLES + 1, "examples are kept for")
        totals, at = self.totals, (*where, PATTERNS.index(pattern))
        examples = []
        for place in range(min(whole_number("top", most, 1), totals.text_LHPk.shape[-1])):
            number = int(totals.text_LHPk[at][place])
            if number == NONE:
                break
            query, key = int(totals.query_LHPk[at][place]), int(totals.key_LHPk[at][place])
            score, weight = float(totals.score_LHPk[at][place]), float(totals.weight_LHPk[at][place])
            examples.append(self._example(number, query, key, score, weight))
        return tuple(examples)

    def _example(self, number: int, query: int, key: int, score: float, weight: float) -> Example:
        text = self.corpus.texts[number]
        encoding = self.encode(text.text)
        spans = [tuple(map(int, encoding.offsets[token])) for token in (query, key)]
        return Example(
            text=text.text,
            source=text.source,
            score=score,
            query=(spans[0][0], spans[0][1]),
            key=(spans[1][0], spans[1][1]),
            key_piece=encoding.pieces[key],
            weight=weight,
            query_token=query,
            key_token=key,
        )

    def _head(self, layer: int, head: int) -> tuple[int, int]:
        layers, heads = self.totals.entropy_LH.shape
        one_of("layer", layer, layers, "this encoder has layers")
        return layer, one_of("head", head, heads, f"layer {layer} has heads")

    def _mean(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(sums / max(1, self.totals.queries))


def measure_corpus(
    encoder: Encoder,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    max_tokens: int | None = None,
    cache: Path | None = None,
    identity: str = "",
    known: CorpusStatistics | None = None,
    watch: Watch | None = None,
    partial: Callable[[CorpusStatistics], None] | None = None,
) -> CorpusStatistics:
    """Read a corpus and keep statistics and examples of every head, in memory that does not grow with it.

    Texts of equal length are read together, without padding; see `EqualLengthBatch`. The result does not
    depend on the order of the texts.

    Args:
        encoder: what reads them.
        tokenizer: of the encoder.
        corpus: the texts.
        max_tokens: what the encoder reads at most; texts of more tokens, and of more than `MOST_TOKENS`, are
            truncated.
        cache: a file to keep the result in, written after every round. If it holds a result, or the beginning
            of one, of the same ``identity`` and corpus, it is taken up; a file that is damaged or of anything
            else is replaced.
        identity: what the numbers depend on besides the corpus, such as a digest of the model.
        known: the result of the same pass that was stopped, which is taken up.
        watch: called after each layer of a batch with the texts done and in all; it may raise
            `unmask.errors.Cancelled`. Finished rounds stay in the file.
        partial: called after each round with the result so far.

    Raises:
        UnknownArchitecture: the encoder has no attention.
        TextError: a text cannot be tokenized.
        NonFiniteResult: a state is infinite or not a number.
        OutputError: the file cannot be written.
        Cancelled: ``watch`` stopped the work.
    """
    check_attention(encoder)
    limit = _limit(max_tokens)
    texts = [text.text for text in corpus.texts]
    encodings = tokenizer.encode_batch(
        texts, max_tokens=limit, truncation="end", name=lambda number: corpus.texts[number].source
    )
    key = _key(corpus, max_tokens, identity)
    totals = _no_totals(encoder) if known is None else known.totals
    stored = None if cache is None else kept_totals(encoder, corpus, cache, max_tokens, identity)
    if stored is not None and stored.texts >= totals.texts:
        totals = stored

    def encode(text: str) -> Encoding:
        return tokenizer.encode(text, max_tokens=limit, truncation="end")

    statistics = CorpusStatistics(
        corpus,
        totals,
        truncated=sum(encoding.original_tokens > encoding.kept_tokens for encoding in encodings),
        encode=encode,
        from_cache=totals is stored and totals.texts == len(corpus),
    )
    if partial is not None and totals.texts:
        partial(statistics)
    watched = watch or unwatched
    for end in _ends(len(corpus)):
        if end <= statistics.totals.texts:
            continue
        totals = statistics.totals.copied()
        _add_round(encoder, encodings, totals, end, watched)
        if cache is not None:
            write_totals(cache, key, totals)
        statistics = replace(statistics, totals=totals)
        if partial is not None:
            partial(statistics)
    return statistics


def kept_totals(
    encoder: Encoder, corpus: Corpus, cache: Path, max_tokens: int | None = None, identity: str = ""
) -> HeadTotals | None:
    """What a file of `measure_corpus` holds of the same pass, whole or in part; None if it holds nothing."""
    stored = read_totals(cache, _key(corpus, max_tokens, identity), _no_totals(encoder))
    return stored if stored is not None and stored.texts in _ends(len(corpus)) else None


def _no_totals(encoder: Encoder) -> HeadTotals:
    heads = [layer.mixer.heads for layer in encoder.spec.layers]
    return HeadTotals.empty(len(heads), max(heads))


def _limit(max_tokens: int | None) -> int:
    return MOST_TOKENS if max_tokens is None else min(MOST_TOKENS, max_tokens)


def _key(corpus: Corpus, max_tokens: int | None, identity: str) -> str:
    return f"{identity} {corpus.sha256} {_limit(max_tokens)}"


def _ends(count: int) -> list[int]:
    """The numbers of texts at which rounds end."""
    ends, size = [0], FIRST_ROUND
    while ends[-1] < count:
        ends.append(min(count, ends[-1] + size))
        size = min(LARGEST_ROUND, 2 * size)
    return ends


def _add_round(
    encoder: Encoder,
    encodings: Sequence[Encoding],
    totals: HeadTotals,
    end: int,
    watch: Watch,
) -> None:
    """Add the texts that are not in ``totals`` yet, up to ``end``."""
    done, count = totals.texts, len(encodings)
    for numbers in batches(encodings, range(done, end), encoder):
        some = [encodings[number] for number in numbers]

        def ticked(what: str, layers: int, of: int, done: int = done, texts: int = len(some)) -> None:
            # Half of the work of a batch is the forward pass, more or less.
            part = layers / (2 * of) + (0.5 if what == "measuring" else 0)
            watch("measuring the corpus", done + int(texts * part), count)

        batch = EqualLengthBatch.run(encoder, some, ticked)
        related, words = relations(some), BatchWords.of(some)
        texts_S = np.array(numbers)
        for layer in range(len(encoder.spec.layers)):
            p_SHNN, keys_SHN = batch.attention(layer)
            totals.add(layer, p_SHNN, keys_SHN, related, texts_S, words=words)
            ticked("measuring", layer + 1, len(encoder.spec.layers))
        totals.count(len(some), len(some[0]), words.drifts(batch.states))
        done += len(some)


def batches(
    encodings: Sequence[Encoding] | Mapping[int, Encoding], numbers: Sequence[int], encoder: Encoder
) -> Iterator[list[int]]:
    """Texts of equal length, as many as `CELLS_AT_ONCE` allows, in the order of their numbers."""
    heads = max(layer.mixer.heads for layer in encoder.spec.layers)

    def length(number: int) -> int:
        return len(encodings[number])

    for tokens, same in groupby(sorted(numbers, key=lambda number: (length(number), number)), key=length):
        at_once = max(1, CELLS_AT_ONCE // (heads * tokens * tokens))
        some = list(same)
        for first in range(0, len(some), at_once):
            yield some[first : first + at_once]


__all__ = ["CLASSES", "LABELS", "PATTERNS", "CorpusStatistics", "Example", "measure_corpus"]


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
    words = [word.strip() if word else "" for word in (query, key)]
    if not any(words):
        raise InvalidRequest("no word was given; give the word of the query or of the key")
    texts = statistics.corpus.texts
    numbers = [
        number
        for number, text in enumerate(texts)
        if all(not word or any(occurrences(text.text, word)) for word in words)
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
        marks = [_marked(chosen, word) if word else None for word in words]
        related = relations(chosen).only(*marks)
        p_SHNN, _ = batch.attention(layer)
        totals.rank(0, slice(0, 1), p_SHNN[:, head : head + 1], related, np.array(group))
        done += len(group)
    ranked = CorpusStatistics(statistics.corpus, totals, statistics.truncated, statistics.encode)
    return FoundExamples(ranked.examples(0, 0, pattern, top), len(numbers), len(some))


def _marked(encodings: Sequence[Encoding], words: str) -> NDArray[np.bool_]:
    """The tokens that share a character with an occurrence of words, (S, N)."""
    marked_SN = np.zeros((len(encodings), len(encodings[0])), dtype=np.bool_)
    for text, encoding in enumerate(encodings):
        start_N, end_N = encoding.offsets.T
        for start, end in occurrences(encoding.text, words):
            marked_SN[text] |= (start_N < end) & (end_N > start) & ~encoding.special
    return marked_SN
