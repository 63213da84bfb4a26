"""Labels of words, and the entities that they form, with offsets into the caller's string.

Axes: W words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_flag, listed, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest
from unmask.spec import Classifier
from unmask.tasks.batches import TOKENS_PER_PASS, last_states
from unmask.tasks.classify import THRESHOLD, classifier_of, label_names, probabilities
from unmask.tasks.label_network import LabelNetwork
from unmask.tasks.label_spans import (
    LabeledSpan,
    LabelText,
    LabelWindow,
    Search,
    context_in,
    read_texts,
    search_for,
    spans_of,
)
from unmask.tasks.logits import Coverage, WindowedLogits, windowed
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.schemes import Scheme, entities_of, written_in
from unmask.tasks.values import Aggregation, LongTexts, SchemeName
from unmask.text import Encoding
from unmask.text.borders import word_borders
from unmask.text.tokenizer import numbered

Words = Sequence[str]
"""The words of one text."""


@dataclass(frozen=True)
class TaggedWord:
    """A word and its label."""

    label: str
    start: int
    """The offset of its first character in the caller's string."""
    end: int
    """The offset after its last character."""
    text: str
    score: float
    """The probability of the label."""
    word: int
    """Its index among the words that were given, or among those of the text that have a token."""


@dataclass(frozen=True)
class Entity:
    """Consecutive words that form one entity."""

    label: str
    """Its type, without the prefix of a tagging scheme: PER for B-PER and I-PER."""
    start: int
    """The offset of its first character in the caller's string."""
    end: int
    """The offset after its last character."""
    text: str
    score: float
    """The mean probability of its words' labels; with ``labels``, the probability that the label fits."""


@dataclass(frozen=True)
class EntityVector(Entity):
    """An entity with the vector of its span."""

    vector: tuple[float, ...]
    """What the head multiplies with the vector of a label, as many numbers as the head is wide
    (``hidden_size`` in gliner_config.json): the logit of a label is the product of both."""


@dataclass(frozen=True)
class Tagging(Coverage):
    """The prediction for one text."""

    words: tuple[TaggedWord, ...]
    """Empty with ``labels``, which are those of entities, not of words."""
    entities: tuple[Entity, ...]
    """For labels of a tagging scheme (B-, I-, ...); empty for others, such as parts of speech. With
    ``vectors``, each is an `EntityVector`."""
    has_entities: bool
    """Whether the labels are of a tagging scheme."""
    scheme: SchemeName
    """The scheme that the labels follow, if they are of one."""

    def labels(self, words: int | None = None) -> list[str]:
        """The label of each word.

        Args:
            words: how many words were given. A word without a token is inside the entity around it, or O.
        """
        count = max((word.word + 1 for word in self.words), default=0) if words is None else words
        if self.has_entities:
            spans = [
                (kind, self.words[first].word, self.words[end - 1].word + 1)
                for kind, first, end in entities_of([word.label for word in self.words])
            ]
            return written_in(self.scheme, spans, count)
        labels = ["O"] * count
        for word in self.words:
            labels[word.word] = word.label
        return labels

    def in_scheme(self, scheme: SchemeName) -> "Tagging":
        """The same entities with labels of words in another scheme.

        Raises:
            InvalidRequest: the labels are not of entities, or there is no such scheme.
        """
        check_choice("scheme", scheme, get_args(SchemeName))
        if not self.has_entities:
            raise InvalidRequest(
                f"scheme is {scheme!r} and the labels of the model are not of entities; leave the scheme out"
            )
        labels = replace(self, scheme=scheme).labels()
        words = tuple(replace(word, label=labels[word.word]) for word in self.words)
        return replace(self, words=words, scheme=scheme)


def prepare(
    reader: Reader,
    texts: str | Sequence[str] | Sequence[Words],
    *,
    aggregation: Aggregation = "first",
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
    labels: Sequence[str] | None = None,
    threshold: float | Mapping[str, float] = THRESHOLD,
    nested: bool = False,
    multi_label: bool = False,
    vectors: bool = False,
) -> Ready[list[Tagging]]:
    """The label of each word of each text; arguments as of `unmask.models.model.Model.tag`."""
    if labels is not None:
        check_flag("nested", nested)
        check_flag("multi_label", multi_label)
        check_flag("vectors", vectors)
        check_choice("truncation", truncation, get_args(LongTexts))
        if aggregation != "first":
            raise InvalidRequest("aggregation is for labels of words; leave it out where labels are named")
        overlap = None if overlap_tokens is None else whole_number("overlap_tokens", overlap_tokens, 0)
        search = search_for(labels, threshold, nested=nested, multi_label=multi_label)
        return _of_labels(
            reader, texts, search, truncation=truncation, overlap=overlap, name=name, vectors=vectors
        )
    if threshold != THRESHOLD or nested or multi_label or vectors:
        raise InvalidRequest(
            "threshold, nested, multi_label and vectors are for labels; give labels, or leave them out"
        )
    if reader.checkpoint.label_head is not None:
        raise InvalidRequest(
            f"{reader.name} finds entities of labels that are named with the text; give labels, such as "
            "labels=['person', 'drug']"
        )
    head = classifier_of(reader.spec, "tokens", reader.name)
    check_choice("aggregation", aggregation, get_args(Aggregation))
    name = called(texts, name)
    inputs = several("texts", texts)
    if inputs and not isinstance(inputs[0], str):
        encodings = [
            reader.tokenizer.encode_words(listed(name(index), words), name=name(index))
            for index, words in enumerate(inputs)
        ]
    else:
        encodings = reader.whole(inputs, truncation=truncation, name=name)
    return windowed(
        "tokens",
        encodings,
        partial(tag, head, aggregation=aggregation),
        max_tokens=reader.max_tokens,
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=name,
    )


def _of_labels(
    reader: Reader,
    texts: str | Sequence[str] | Sequence[Words],
    search: Search,
    *,
    truncation: LongTexts,
    overlap: int | None,
    name: Name,
    vectors: bool,
) -> Ready[list[Tagging]]:
    """The entities of labels that are named with the texts."""
    network = reader.checkpoint_labels
    if vectors and network.head.scores != "spans":
        raise InvalidRequest(
            f"{reader.name} scores words, so spans have no vectors; leave vectors out, or use a checkpoint "
            "of GLiNER that scores spans"
        )
    name = called(texts, name)
    read = read_texts(
        reader,
        network.head,
        several("texts", texts),
        search.labels,
        truncation=truncation,
        overlap=overlap,
        name=name,
    )
    owners = [index for index, text in enumerate(read) for _ in text.windows]

    def taggings(values: Sequence[WindowScores]) -> list[Tagging]:
        rest = iter(values)
        return [
            _with_labels(text, [next(rest) for _ in text.windows], search, network, vectors=vectors)
            for text in read
        ]

    return Ready(
        [window for text in read for window in text.windows],
        partial(window_scores, network=network),
        taggings,
        ("labels",),
        lambda place: name(owners[place]),
        read,
    )


class WindowScores(NamedTuple):
    """What the head computes of one window."""

    logits: Floats
    """See `LabelNetwork.logits`."""
    words_WD: Floats
    """The words that they are computed from."""


def window_scores(
    engine: Engine,
    *,
    network: LabelNetwork,
    encodings: Sequence[LabelWindow],
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name,
) -> list[WindowScores]:
    """The logits of each window, and its words.

    Raises:
        NonFiniteResult: a hidden state is infinity or NaN.
    """

    scores: dict[int, WindowScores] = {}
    for chosen, rows in last_states(engine, encodings, tokens_per_pass, progress, name):
        windows = [encodings[index] for index in chosen]
        words = [network.project(x_ND[it.words_at]) for x_ND, it in zip(rows, windows, strict=True)]
        lengths = [len(it.words_at) for it in windows]
        mixed = np.split(network.mix(np.concatenate(words), lengths), np.cumsum(lengths)[:-1])
        for index, x_ND, it, words_WD in zip(chosen, rows, windows, mixed, strict=True):
            if network.head.labels_width is None:
                labels_CD = network.project(x_ND[it.labels])
            else:
                labels_CD = network.project_labels(it.labels)
            scores[int(index)] = WindowScores(network.logits(words_WD, labels_CD), words_WD)
    return [scores[index] for index in range(len(encodings))]


def span_vectors(
    text: LabelText, scores: Sequence[WindowScores], spans: Sequence[LabeledSpan], network: LabelNetwork
) -> Floats:
    """The vector of each span, (..., D), from the window that gave its score."""
    count, width = len(text.bounds), network.head.width
    vectors = np.empty((len(spans), width), dtype=scores[0].words_WD.dtype)
    context = np.array(
        [
            [context_in(window.first, len(it.words_WD), count, span.first, span.last) for span in spans]
            for window, it in zip(text.windows, scores, strict=True)
        ]
    )
    for number, (window, it) in enumerate(zip(text.windows, scores, strict=True)):
        chosen = [place for place, best in enumerate(context.argmax(0)) if best == number]
        bounds = [(spans[place].first - window.first, spans[place].last - window.first) for place in chosen]
        if chosen:
            vectors[chosen] = network.span_vectors(it.words_WD, bounds)
    return vectors


def _with_labels(
    text: LabelText, scores: Sequence[WindowScores], search: Search, network: LabelNetwork, *, vectors: bool
) -> Tagging:
    spans = spans_of(text, [window.logits for window in scores], search, network.head)
    entities = []
    for span in spans:
        start, end = int(text.bounds[span.first, 0]), int(text.bounds[span.last, 1])
        entities.append(Entity(search.labels[span.label], start, end, text.text[start:end], span.score))
    if vectors:
        entities = [
            EntityVector(**vars(entity), vector=tuple(vector_D))
            for entity, vector_D in zip(
                entities, span_vectors(text, scores, spans, network).tolist(), strict=True
            )
        ]
    return Tagging(
        (),
        tuple(entities),
        True,
        "IOB2",
        tokens_read=text.tokens,
        windows=len(text.windows),
        truncated_tokens=text.truncated_tokens,
    )


def tag(
    head: Classifier,
    texts: Sequence[WindowedLogits],
    *,
    aggregation: Aggregation = "first",
) -> list[Tagging]:
    """The words of each text with their labels, and its entities.

    The words are those that the caller gave, or those of `unmask.text.borders.word_borders`. In a tagging
    scheme the labels are the most probable sequence without an illegal transition (Viterbi), so no I-PER
    follows O in IOB2.
    """
    scheme = Scheme(label_names(head))
    return [_tagged(text, scheme, aggregation) for text in texts]


def _tagged(text: WindowedLogits, scheme: Scheme, aggregation: Aggregation) -> Tagging:
    encoding = text.encoding
    bounds_W2, words_N = words_of(encoding)
    p_NC = probabilities(text.per_token(), "single_label_classification")
    p_WC = _by_word(p_NC, words_N, len(bounds_W2), aggregation)
    chosen = best_sequence(p_WC, scheme) if scheme.has_entities else p_WC.argmax(-1)
    words = tuple(
        TaggedWord(scheme.labels[label], start, end, encoding.text[start:end], float(p_C[label]), int(word))
        for (start, end), label, p_C, word in zip(
            bounds_W2.tolist(), chosen.tolist(), p_WC, _numbers(encoding, len(bounds_W2)), strict=True
        )
    )
    entities = _entities(words, encoding.text) if scheme.has_entities else ()
    return Tagging(words, entities, scheme.has_entities, scheme.name, **vars(text.coverage))


def _numbers(encoding: Encoding, count: int) -> NDArray[np.int64]:
    """The index of each word that has a token among the words that the caller gave, if any."""
    if encoding.words is None:
        return np.arange(count)
    offsets = encoding.offsets
    return np.unique(encoding.words[(offsets[:, 0] < offsets[:, 1]) & (encoding.words >= 0)])


def words_of(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The words of a text that have at least one token, and the word of each token.

    Words that one token covers, such as two Han characters, are one word, since they have one label.

    Returns:
        Bounds in the caller's string, (W, 2), and for each token its word, (N,); -1 for special tokens, for
        tokens that stand for no character, and for white space between words.
    """
    offsets = encoding.offsets
    covers = (offsets[:, 0] < offsets[:, 1]) & (encoding.sequence_ids == 0)
    if encoding.words is not None:
        of_N = np.where(covers, encoding.words, -1)
    else:
        covers &= [bool(encoding.text[start:end].strip()) for start, end in offsets.tolist()]
        borders = np.flatnonzero(_borders(encoding.text, offsets[covers]))
        of_N = np.where(covers, np.searchsorted(borders, offsets[:, 0], side="right") - 1, -1)
    words_with_tokens, dense_N = np.unique(of_N[covers], return_inverse=True)
    words_N = np.full(len(of_N), -1, dtype=np.int64)
    words_N[covers] = dense_N
    if encoding.words is not None:
        starts = np.full(len(words_with_tokens), len(encoding.text))
        ends = np.zeros(len(words_with_tokens), dtype=np.int64)
        np.minimum.at(starts, dense_N, offsets[covers, 0])
        np.maximum.at(ends, dense_N, offsets[covers, 1])
    else:
        starts, ends = borders[words_with_tokens], borders[words_with_tokens + 1]
    return np.stack((starts, ends), axis=1), words_N


def _borders(text: str, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`word_borders` except those inside a token, whose ranges are ``offsets``."""
    depth = np.zeros(len(text) + 2, dtype=np.int64)
    np.add.at(depth, offsets[:, 0] + 1, 1)
    np.add.at(depth, offsets[:, 1], -1)
    outside: NDArray[np.bool_] = depth.cumsum()[: len(text) + 1] == 0
    return word_borders(text) & outside


def _by_word(
    p_NC: Floats, words_N: NDArray[np.int64], count: int, aggregation: Aggregation
) -> NDArray[np.float64]:
    tokens = np.flatnonzero(words_N >= 0)
    if aggregation == "first":
        _, first = np.unique(words_N[tokens], return_index=True)
        return np.asarray(p_NC[tokens[first]], dtype=np.float64)
    sums = np.zeros((count, p_NC.shape[1]))
    np.add.at(sums, words_N[tokens], p_NC[tokens])
    return sums / np.bincount(words_N[tokens], minlength=count)[:, None]


def best_sequence(p_WC: NDArray[np.float64], scheme: Scheme) -> NDArray[np.int64]:
    """The labels of the most probable legal sequence (Viterbi 1967)."""
    first, follows, last = scheme.allowed()
    with np.errstate(divide="ignore"):
        logs_WC = np.log(p_WC)
    logs_WC = np.maximum(logs_WC, -1e4)  # a probability of 0 is still better than an illegal sequence
    if not len(p_WC):
        return np.empty(0, dtype=np.int64)
    best_C = np.where(first, logs_WC[0], -np.inf)
    came = np.zeros(p_WC.shape, dtype=np.int64)
    for word in range(1, len(p_WC)):
        paths_CC = np.where(follows, best_C[:, None], -np.inf)
        came[word] = paths_CC.argmax(0)
        best_C = paths_CC.max(0) + logs_WC[word]
    chosen = np.empty(len(p_WC), dtype=np.int64)
    chosen[-1] = np.where(last, best_C, -np.inf).argmax()
    for word in range(len(p_WC) - 1, 0, -1):
        chosen[word - 1] = came[word, chosen[word]]
    return chosen


def _entities(words: Sequence[TaggedWord], text: str) -> tuple[Entity, ...]:
    """The entities that words form, each from the first character of its words to the last."""
    entities = []
    for kind, first, end in entities_of([word.label for word in words]):
        members = words[first:end]
        start, stop = members[0].start, members[-1].end
        entities.append(
            Entity(kind, start, stop, text[start:stop], float(np.mean([word.score for word in members])))
        )
    return tuple(entities)
