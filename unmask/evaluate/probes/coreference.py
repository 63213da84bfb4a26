"""Heads and gold coreference chains: is the mention that a mention attends to most an antecedent?

After Clark et al. 2019, section 4.3; chains are read from files in the form of CoNLL-2012.

Axes: W words; M mentions; A predictors.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_limit
from unmask.base.progress import Watch
from unmask.errors import InvalidRequest, InvalidText, TextTooLong
from unmask.evaluate.probes.head_accuracy import Answers, Comparison, accuracies, compare_all
from unmask.interpret.corpus.measure import MOST_TOKENS
from unmask.interpret.corpus.word_links import LinkedText, right_answers
from unmask.models.load import Model
from unmask.text.lines import files_in, lines

ENDINGS = ("conll",)
"""Of the names of files in a folder, such as ``.conll`` and ``.v4_gold_conll``."""

LEAST_COLUMNS = 5
"""Document, part, word number, word, part of speech; the chains are in the last column."""

PRONOUNS = ("PRP", "PRON", "WP")
NOUNS = ("NN", "NOUN", "PROPN", *PRONOUNS)
AFTER_HEAD = (
    "IN",
    "ADP",
    "WDT",
    "WP",
    "WRB",
    "TO",
    "VBG",
    "VBN",
    "VB",
    "POS",
    "PART",
    "CC",
    ",",
    ":",
    "-LRB-",
    "PUNCT",
)
"""Beginnings of parts of speech (Penn Treebank or universal) that follow a mention's head."""

BASELINES = ("nearest", "same head")
"""The nearest earlier mention head; the nearest of the same form (capitals aside), else the nearest."""

KINDS = ("all", "pronoun", "other")
"""All mentions with an antecedent; those of one word whose part of speech is a pronoun; the others."""


@dataclass(frozen=True)
class Mention:
    """A mention, in words of its document from 0; `end` is not included."""

    chain: int
    start: int
    end: int
    head: int


@dataclass(frozen=True, eq=False)
class Document:
    """A part of a document, as CoNLL-2012 divides them."""

    name: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    sentences: tuple[tuple[int, int], ...]
    """The first word of each sentence, and the word after its last."""
    mentions: tuple[Mention, ...]
    """In the order of their heads."""


def read_coreference(path: Path, limit: int | None = None) -> list[Document]:
    """The documents of a file in the form of CoNLL-2012, or of a folder of such files.

    A line has at least `LEAST_COLUMNS` columns separated by white space; the last one marks where mentions of
    chains begin and end: ``(3``, ``3)``, ``(3)``, several joined by ``|``, or ``-``. A mention's head is the
    last noun or pronoun before what follows the head (a preposition, a relative clause, a comma ...) by the
    parts of speech, or the last word without such a noun; trees are not read.

    Raises:
        InvalidRequest: there is no file or document, or ``limit`` is below 1.
        InvalidText: a file cannot be read, a line has too few columns, or brackets do not match.
    """
    check_limit(limit)
    documents = []
    for file in files_in(path, ENDINGS):
        for document in _documents(file):
            documents.append(document)
            if len(documents) == limit:
                return documents
    if not documents:
        raise InvalidRequest(f"{path} holds no document with words; name another file (--data)")
    return documents


def _documents(path: Path) -> Iterator[Document]:
    reading = _Reading(str(path))
    for number, line in lines(path):
        if line.startswith("#"):
            if reading.words:
                yield reading.document()
            reading = _Reading(line.removeprefix("#begin document").strip() or str(path))
        elif not line.strip():
            reading.end_sentence()
        else:
            reading.add(line.split(), f"line {number} of {path}")
    if reading.words:
        yield reading.document()


class _Reading:
    """A document while its lines are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.words: list[str] = []
        self.tags: list[str] = []
        self.borders = [0]
        self.open: dict[int, list[int]] = {}
        self.spans: list[tuple[int, int, int]] = []

    def add(self, columns: list[str], where: str) -> None:
        if len(columns) < LEAST_COLUMNS:
            raise InvalidText(
                f"{where} has {len(columns)} columns; CoNLL-2012 has the word in the fourth, the part of "
                "speech in the fifth and the chains in the last"
            )
        word = len(self.words)
        self.words.append(columns[3])
        self.tags.append(columns[4])
        for mark in columns[-1].split("|"):
            shape = re.fullmatch(r"(\()?(\d+)(\))?", mark)
            if shape is None and mark not in ("-", "_", "*"):
                raise InvalidText(
                    f"{where} has {mark!r} in its last column; chains are written (3, 3), (3) or -"
                )
            if shape is None:
                continue
            opens, chain, closes = shape[1], int(shape[2]), shape[3]
            if opens:
                self.open.setdefault(chain, []).append(word)
            if closes:
                if not self.open.get(chain):
                    raise InvalidText(f"{where} closes a mention of chain {chain}, and none is open")
                self.spans.append((chain, self.open[chain].pop(), word + 1))

    def end_sentence(self) -> None:
        if len(self.words) > self.borders[-1]:
            self.borders.append(len(self.words))

    def document(self) -> Document:
        self.end_sentence()
        unclosed = [chain for chain, starts in self.open.items() if starts]
        if unclosed:
            raise InvalidText(f"a mention of chain {unclosed[0]} is never closed in {self.name}")
        tags = tuple(self.tags)
        mentions = [Mention(chain, start, end, head_of(tags, start, end)) for chain, start, end in self.spans]
        return Document(
            self.name,
            tuple(self.words),
            tags,
            tuple(zip(self.borders, self.borders[1:], strict=False)),
            tuple(sorted(mentions, key=lambda mention: (mention.head, mention.start, mention.chain))),
        )


def head_of(tags: Sequence[str], start: int, end: int) -> int:
    """The head word of a mention by its parts of speech, see `read_coreference`."""
    noun = None
    for word in range(start, end):
        if noun is not None and tags[word].startswith(AFTER_HEAD):
            break
        if tags[word].startswith(NOUNS):
            noun = word
    return end - 1 if noun is None else noun


@dataclass(frozen=True)
class MentionScore:
    """The heads on one kind of mention."""

    kind: str
    mentions: int
    documents: int
    chance: float
    """Accuracy of a candidate drawn at random."""
    comparison: Comparison | None
    """The best head beside the best baseline; None with too few mentions."""
    head: tuple[int, int] | None
    """Layer and head of the best head, chosen on half of the documents."""
    baseline: str | None
    """The best of `BASELINES`, chosen on the same half."""
    accuracy: tuple[tuple[float, ...], ...]
    """On all documents: by layer and head."""
    low: tuple[tuple[float, ...], ...]
    """The lower ends of their 95 % bootstrap intervals over documents, each interval for itself."""
    high: tuple[tuple[float, ...], ...]
    baselines: dict[str, float]
    """The accuracy of each baseline on all documents."""


@dataclass(frozen=True)
class CoreferenceResult:
    """The result of `measure_coreference`."""

    probe: str = field(default="coreference", init=False)
    model: str
    revision: str | None
    dtype: str
    data: str
    layers: int
    heads: int
    documents: int
    windows: int
    """Runs of whole sentences that were read at once."""
    mentions: int
    outside: int
    """Mentions with antecedents that all lie before their window; they are not scored."""
    too_long: int
    """Sentences that were left out because they exceed what the model reads, or 512 tokens."""
    kinds: tuple[MentionScore, ...]
    seconds: float


def measure_coreference(
    model: Model,
    documents: Sequence[Document],
    *,
    data: str = "the given documents",
    cache: Path | None = None,
    watch: Watch | None = None,
) -> CoreferenceResult:
    """For every head, the share of mentions whose most attended earlier mention head is an antecedent's.

    A mention is scored if a mention of its chain has a head before its own, in the same window; candidates
    are the heads of all mentions, of any chain, before it. Attention between words is that of
    `unmask.interpret.corpus.word_links`, from the head of the mention. Documents are read in windows of whole
    sentences, as long as the model reads and at most 512 tokens. The head and the baseline are chosen on one
    half of the documents and measured on the other, see `unmask.evaluate.probes.head_accuracy`.

    Args:
        model: any encoder with attention.
        documents: see `unmask.evaluate.probes.coreference.read_coreference`.
        data: what they are called in the result.
        cache: a file from which a run that was stopped is resumed.
        watch: called after each layer of a batch with the windows done and in all.

    Raises:
        InvalidRequest: no mention has an antecedent in its window.
        UnknownArchitecture: the model has no attention.
        Cancelled: ``watch`` stopped the work.
    """
    begin = time.perf_counter()
    cut = [_windows(model, document) for document in documents]
    windows = [(number, window) for number, (parts, _) in enumerate(cut) for window in parts]
    identity = model.content_digest() if cache is not None else ""
    texts = [window.text for _, window in windows]
    right_LHM = right_answers(model.encoder, texts, cache=cache, identity=identity, watch=watch)
    layers, heads, count = right_LHM.shape
    document_M = np.repeat([number for number, _ in windows], [len(window.text) for _, window in windows])
    pronoun_M, chance_M, baselines_AM = (
        np.concatenate([getattr(window, name) for _, window in windows], axis=-1)
        for name in ("pronoun_M", "chance_M", "baselines_AM")
    )
    every_M = np.ones(count, dtype=np.bool_)
    masks = zip(KINDS, (every_M, pronoun_M, ~pronoun_M), strict=True)
    kinds = {name: of for name, of in masks if of.any()}
    right_AM = right_LHM.reshape(-1, count)
    answers = [
        Answers.of(document_M[of], len(documents), right_AM[:, of], baselines_AM[:, of])
        for of in kinds.values()
    ]
    return CoreferenceResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        data=data,
        layers=layers,
        heads=heads,
        documents=len(documents),
        windows=len(windows),
        mentions=sum(len(document.mentions) for document in documents),
        outside=sum(window.outside for _, window in windows),
        too_long=sum(too_long for _, too_long in cut),
        kinds=tuple(
            _score(name, answer, compared, (layers, heads), float(chance_M[of].mean()))
            for (name, of), answer, compared in zip(kinds.items(), answers, compare_all(answers), strict=True)
        ),
        seconds=time.perf_counter() - begin,
    )


@dataclass(frozen=True, eq=False)
class _Window:
    """A run of sentences of a document with its questions."""

    text: LinkedText
    pronoun_M: NDArray[np.bool_]
    chance_M: NDArray[np.float64]
    baselines_AM: NDArray[np.bool_]
    outside: int


def _windows(model: Model, document: Document) -> tuple[list[_Window], int]:
    """The windows of a document, and how many of its sentences are too long."""
    longest = MOST_TOKENS if model.max_tokens is None else min(MOST_TOKENS, model.max_tokens)
    windows: list[_Window] = []
    start = end = tokens = too_long = 0

    def close() -> None:
        if end > start:
            windows.append(_window(model, document, start, end))

    for first, last in document.sentences:
        words = document.words[first:last]
        try:
            encoding = model.tokenizer.encode_words(words, max_tokens=longest, name=document.name)
        except TextTooLong:
            close()
            start = end = last
            tokens, too_long = 0, too_long + 1
            continue
        special = int(encoding.special.sum())
        if tokens + len(encoding) > longest:
            close()
            start, tokens = first, 0
        end, tokens = last, tokens + len(encoding) - special
    close()
    return windows, too_long


def _window(model: Model, document: Document, start: int, end: int) -> _Window:
    encoding = model.tokenizer.encode_words(document.words[start:end], name=document.name)
    assert encoding.words is not None
    has_token = set(encoding.words.tolist())
    inside = [mention for mention in document.mentions if start <= mention.start and mention.end <= end]
    inside = [mention for mention in inside if mention.head - start in has_token]
    before = {mention.chain for mention in document.mentions if mention.end <= start}
    scored, candidates, accepted, baselines, outside = [], [], [], [], 0
    for mention in inside:
        earlier = [other for other in inside if other.head < mention.head]
        right = {other.head - start for other in earlier if other.chain == mention.chain}
        if not right:
            outside += mention.chain in before
            continue
        places = sorted({other.head - start for other in earlier})
        form = document.words[mention.head].lower()
        same = [word for word in places if document.words[start + word].lower() == form]
        scored.append(mention)
        candidates.append(np.isin(np.arange(end - start), places))
        accepted.append(np.isin(np.arange(end - start), list(right)))
        baselines.append([places[-1] in right, (same or places)[-1] in right])
    shape = (len(scored), end - start)
    candidates_MW, accepted_MW = (
        np.array(rows, dtype=np.bool_).reshape(shape) for rows in (candidates, accepted)
    )
    text = LinkedText(
        encoding,
        source_M=np.array([mention.head - start for mention in scored], dtype=np.int64),
        backward_M=np.zeros(len(scored), dtype=np.bool_),
        candidates_MW=candidates_MW,
        accepted_MW=accepted_MW,
    )
    pronoun = [
        mention.end - mention.start == 1 and document.tags[mention.head].startswith(PRONOUNS)
        for mention in scored
    ]
    return _Window(
        text,
        np.array(pronoun, dtype=np.bool_),
        accepted_MW.sum(-1) / np.maximum(candidates_MW.sum(-1), 1),
        np.array(baselines, dtype=np.bool_).reshape(-1, len(BASELINES)).T,
        outside,
    )


def _score(
    kind: str, answers: Answers, compared: Comparison | None, shape: tuple[int, int], chance: float
) -> MentionScore:
    value, low, high = (
        tuple(map(tuple, values_A.reshape(shape).tolist()))
        for values_A in accuracies(answers.heads_SA, answers.asked_S)
    )
    mentions = int(answers.asked_S.sum())
    best = None if compared is None else divmod(compared.head.number, shape[1])
    return MentionScore(
        kind=kind,
        mentions=mentions,
        documents=int((answers.asked_S > 0).sum()),
        chance=chance,
        comparison=compared,
        head=best,
        baseline=None if compared is None else BASELINES[compared.baseline.number],
        accuracy=value,
        low=low,
        high=high,
        baselines=dict(zip(BASELINES, (answers.baselines_SA.sum(0) / mentions).tolist(), strict=True)),
    )
