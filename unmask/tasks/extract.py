"""What a schema names, extracted from texts in one pass: entities, relations, records, classes (GLiNER2).

Axes: W words of a window; K widths of spans; F fields of a task; I instances; Q fields of all instances.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_fraction, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, InvalidText, TextTooLong, quoted
from unmask.spec import ProblemType
from unmask.tasks.batches import TOKENS_PER_PASS, last_states, require_finite
from unmask.tasks.classify import THRESHOLD, probabilities
from unmask.tasks.label_network import sigmoid
from unmask.tasks.label_spans import OVERLAP_WORDS, context_in, windows_of
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.schema import (
    BEFORE_TEXT,
    BETWEEN,
    SIGNS,
    Classes,
    Extraction,
    Field,
    Record,
    Relation,
    SchemaTask,
    Value,
    choices_prefix,
    prompt_of,
    schema_of,
)
from unmask.tasks.schema_network import SchemaNetwork
from unmask.tasks.tag import Entity
from unmask.tasks.values import LongTexts
from unmask.text.special import literal_engine
from unmask.text.tokenizer import check_texts, numbered

END = "."
"""What is read after a text that does not end so."""

ENDS = (".", "!", "?")


@cache
def _word() -> re.Pattern[str]:
    """A word: an address, letters and digits with their marks, also joined by hyphens; or a character."""
    marks = "".join(chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c))[0] == "M")
    letter = rf"[\w{marks}\u200c\u200d]"
    return re.compile(
        r"(?:https?://[^\s]+|www\.[^\s]+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}|@[a-z0-9_]+"
        rf"|{letter}+(?:[-_]{letter}+)*|\S",
        re.IGNORECASE,
    )


@dataclass(frozen=True, eq=False)
class SchemaWindow:
    """A schema, and consecutive words of a text, as the tokens of one pass."""

    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    markers: tuple[NDArray[np.int64], ...]
    """For each task, the tokens of its sign and of those of its fields."""
    words: tuple[tuple[int, int], ...]
    """The first token of each word and that after its last; choices come before the words of the text."""
    first: int
    """The number of its first word of the text among these."""
    truncated_tokens: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class SchemaText:
    """A text as its words, and the windows that hold them."""

    text: str
    bounds: NDArray[np.int64]
    """The first character of each word and that after its last, (W, 2); the last can be beyond the text."""
    windows: tuple[SchemaWindow, ...]
    tokens: int
    truncated_tokens: int

    def __len__(self) -> int:
        return self.tokens


@dataclass(frozen=True, eq=False)
class TaskScores:
    """What a window says of a task."""

    count: int
    """Instances that were predicted; 0 for classes."""
    logits: Floats
    """Of spans for each field of each instance, (count, F, W, K); of classes (F,)."""


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    schema: Mapping[str, Any],
    *,
    threshold: float = THRESHOLD,
    truncation: LongTexts = "window",
    overlap_words: int | None = None,
    name: Name = numbered,
) -> Ready[list[Extraction]]:
    """What a schema names, of each text.

    Long texts are read in windows of words, where `gliner2` leaves it to the caller to cut a text.

    Args:
        reader: the checkpoint and tokenizer.
        texts: one text or several.
        schema: what is to be extracted, see `unmask.tasks.schema.schema_of`.
        threshold: the least probability of a span, where the schema says none.
        truncation: ``"window"`` reads a long text in windows, ``"error"`` refuses it, and ``"end"`` drops its
            end, which the result counts.
        overlap_words: words shared by neighboring windows; None for 64, or the longest span if that is more.
        name: how error messages name the text at an index.

    Raises:
        TextError: a text is empty, too long, or not Unicode text.
        InvalidRequest: the checkpoint has no head for schemas, or the schema is not of that form.
    """
    check_fraction("threshold", threshold)
    check_choice("truncation", truncation, get_args(LongTexts))
    if overlap_words is not None:
        whole_number("overlap_words", overlap_words, 0)
    network, name = reader.schema_network, called(texts, name)
    tasks = schema_of(schema)
    encoder = SchemaEncoder(reader, network, tasks)
    read = [
        encoder.read(text, name(index), truncation=truncation, overlap=overlap_words)
        for index, text in enumerate(several("texts", texts))
    ]
    owners = [index for index, text in enumerate(read) for _ in text.windows]

    def finish(values: Sequence[tuple[TaskScores, ...]]) -> list[Extraction]:
        rest = iter(values)
        return [
            Decoder(tasks, encoder.prefix, threshold).decode(text, [next(rest) for _ in text.windows])
            for text in read
        ]

    return Ready(
        [window for text in read for window in text.windows],
        partial(schema_scores, network=network, kinds=tuple(task.kind for task in tasks)),
        finish,
        ("schema", tasks),
        lambda place: name(owners[place]),
        read,
    )


class SchemaEncoder:
    """Makes tokens of a schema and of texts: every sign, name and word by itself, without CLS and SEP."""

    def __init__(self, reader: Reader, network: SchemaNetwork, tasks: Sequence[SchemaTask]) -> None:
        self.reader, self.network, self.name = reader, network, reader.name
        for sign in SIGNS:
            if reader.tokenizer.token_to_id(sign) is None:
                raise CorruptCheckpoint(
                    f"the tokenizer of {self.name} has no token {sign}, which stands in schemas; copy the "
                    "tokenizer's files of the checkpoint that was trained with it"
                )
        self._check(tasks)
        self.engine = literal_engine(reader.tokenizer.engine, set(SIGNS))
        self.prefix = choices_prefix(tasks)
        ids: list[int] = []
        markers = []
        for number, task in enumerate(tasks):
            ids += self._ids(BETWEEN) if number else []
            places = []
            parts = prompt_of(task)
            for place, part in enumerate(parts):
                if place == 1 or (place >= 4 and place % 2 == 0 and place < len(parts) - 2):
                    places.append(len(ids))
                ids += self._ids(part)
            markers.append(np.array(places, dtype=np.int64))
        self.before = np.array([*ids, *self._ids(BEFORE_TEXT)], dtype=np.int64)
        self.markers = tuple(markers)

    def _check(self, tasks: Sequence[SchemaTask]) -> None:
        """Refuse names and descriptions with a sign of the schema's own."""
        said = [text for task in tasks for text in (task.name, task.prompt)]
        said += [text for task in tasks for field in task.fields for text in (field.name, field.description)]
        said += [choice for task in tasks for field in task.fields for choice in field.choices]
        said += [text for task in tasks for example in task.examples for text in example]
        check_texts(said, lambda index: f"{quoted(said[index])} in the schema")
        for text in said:
            for sign in SIGNS:
                if sign in text:
                    raise InvalidRequest(
                        f"{quoted(text)} in the schema contains {sign}, which the model reads as a sign; "
                        "leave it out"
                    )

    def _ids(self, part: str) -> list[int]:
        ids: list[int] = self.engine.encode(part, add_special_tokens=False).ids
        return ids

    def read(self, text: Any, name: str, *, truncation: LongTexts, overlap: int | None) -> SchemaText:
        """The windows of one text."""
        check_texts([text], lambda _: name)
        if not text.strip():
            raise EmptyText(f"{name} has no words; give a text with at least one")
        whole = text if text.endswith(ENDS) else text + END
        matches = list(_word().finditer(whole))
        words = [*self.prefix, *(match.group().lower() for match in matches)]
        distinct = {word: at for at, word in enumerate(dict.fromkeys(words))}
        encoded = self.engine.encode_batch([*distinct], add_special_tokens=False)
        pieces = [encoded[distinct[word]].ids for word in words]
        bounds = np.array([match.span() for match in matches], dtype=np.int64).reshape(-1, 2)
        chosen = len(self.prefix)
        fixed = len(self.before) + sum(map(len, pieces[:chosen]))
        most = self.reader.max_tokens
        counts = np.array([len(piece) for piece in pieces[chosen:]], dtype=np.int64)
        known = self.reader.tokenizer.known
        if known is not None and max(self.before.max(), *map(max, filter(None, pieces))) >= known:
            raise InvalidText(
                f"{name}, or the schema, has a piece that the model has no vector for; take the tokenizer "
                "that the model was trained with"
            )
        room = None if most is None else most - fixed
        if room is not None and room < counts.max():
            start, end = bounds[int(counts.argmax())]
            raise InvalidRequest(
                f"the schema takes {fixed} of the {most} tokens that {self.name} reads, and the word "
                f"{quoted(whole[start:end])} of {name} has {counts.max()}; ask for less, or leave it out"
            )
        shared = max(self.network.head.max_width, OVERLAP_WORDS if overlap is None else overlap)
        ranges = windows_of(counts, room, len(counts), shared)
        dropped = 0
        if len(ranges) > 1 and truncation != "window":
            if truncation == "error":
                raise TextTooLong(
                    f"{name} has {len(counts)} words and the model reads {ranges[0][1]} of them at once with "
                    "the schema; read it in windows (truncation='window'), or truncate it (truncation='end')",
                    original_tokens=fixed + int(counts.sum()),
                    max_tokens=fixed + int(counts[: ranges[0][1]].sum()),
                )
            dropped = int(counts[ranges[0][1] :].sum())
            ranges = ranges[:1]
        windows = tuple(self._window(pieces, first, end, dropped) for first, end in ranges)
        tokens = fixed + int(counts.sum()) - dropped
        return SchemaText(text, bounds[: ranges[-1][1]], windows, tokens, dropped)

    def _window(self, pieces: Sequence[Sequence[int]], first: int, end: int, dropped: int) -> SchemaWindow:
        chosen = len(self.prefix)
        parts = [*pieces[:chosen], *pieces[chosen + first : chosen + end]]
        ids = np.concatenate((self.before, *(np.array(part, dtype=np.int64) for part in parts)))
        starts = len(self.before) + np.cumsum([0, *map(len, parts)])
        # A word without tokens has the state of what follows it, as in gliner2.
        words = [
            (min(start, len(ids) - 1), max(stop, min(start, len(ids) - 1) + 1))
            for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]
        return SchemaWindow(ids, np.zeros_like(ids), self.markers, tuple(words), first, dropped)


def schema_scores(
    engine: Engine,
    *,
    network: SchemaNetwork,
    kinds: Sequence[str],
    encodings: Sequence[SchemaWindow],
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name,
) -> list[tuple[TaskScores, ...]]:
    """What each window says of each task.

    Raises:
        NonFiniteResult: a hidden state or a score is infinity or NaN.
    """
    results: dict[int, tuple[TaskScores, ...]] = {}
    for chosen, states in last_states(engine, encodings, tokens_per_pass, progress, name):
        for place, (index, x_ND) in enumerate(zip(chosen, states, strict=True)):
            scores = tuple(_window_scores(network, kinds, encodings[int(index)], x_ND))
            for score in scores:
                finite = score.logits[np.isfinite(score.logits) | np.isnan(score.logits)]
                rows = np.zeros(1, dtype=np.int64)
                require_finite(finite[None], chosen[[place]], rows, "a score", name=name, dtype=engine.dtype)
            results[int(index)] = scores
    return [results[index] for index in range(len(encodings))]


def _window_scores(
    network: SchemaNetwork, kinds: Sequence[str], window: SchemaWindow, x_ND: Floats
) -> Iterator[TaskScores]:
    words_WD = _words(network, window, x_ND)
    for kind, places in zip(kinds, window.markers, strict=True):
        states = x_ND[places]
        if kind == "classifications":
            yield TaskScores(0, network.class_logits(states[1:]))
            continue
        count = network.count(states[0])
        if not count:
            shape = (0, len(places) - 1, len(words_WD), network.head.max_width)
            yield TaskScores(0, np.empty(shape, dtype=x_ND.dtype))
            continue
        queries_IFD = network.queries(states[1:], count)[: 1 if kind == "entities" else None]
        logits_WKQ = network.logits(words_WD, queries_IFD.reshape(-1, queries_IFD.shape[-1]))
        logits = np.moveaxis(logits_WKQ, 2, 0).reshape(*queries_IFD.shape[:2], *logits_WKQ.shape[:2])
        yield TaskScores(len(logits), logits)


def _words(network: SchemaNetwork, window: SchemaWindow, x_ND: Floats) -> Floats:
    """The state of each word, (W, D)."""
    if network.head.pooling == "first":
        return x_ND[[start for start, _ in window.words]]
    pool = np.mean if network.head.pooling == "mean" else np.max
    return np.stack([pool(x_ND[start:stop], axis=0) for start, stop in window.words])


@dataclass(frozen=True)
class Decoder:
    """From scores to values."""

    tasks: Sequence[SchemaTask]
    prefix: Sequence[str]
    """The words before those of a text."""
    threshold: float

    def decode(self, text: SchemaText, scores: Sequence[tuple[TaskScores, ...]]) -> Extraction:
        """What the windows of a text say together.

        A span counts with the window in which it has the most words beside it. Instances of relations and
        records are those of each window, without those that another window has, too. Probabilities of classes
        are means, weighted by words.
        """
        entities: list[Entity] = []
        relations: dict[Any, Relation] = {}
        records: dict[Any, Record] = {}
        classes: dict[str, Classes] = {}
        for number, task in enumerate(self.tasks):
            each = [(window, of[number]) for window, of in zip(text.windows, scores, strict=True)]
            match task.kind:
                case "entities":
                    entities += self._entities(task, text, each)
                case "relations":
                    for window, score in each:
                        for relation in self._relations(task, text, window, score):
                            head, tail = relation.head, relation.tail
                            ends = (task.name, head.start, head.end, tail.start, tail.end)
                            relations.setdefault(ends, relation)
                case "structures":
                    for window, score in each:
                        for instance, record in enumerate(self._records(task, text, window, score)):
                            places = [
                                (name, value.text, value.start)
                                for name, values in record.fields.items()
                                for value in values
                            ]
                            alone = instance if len(each) == 1 else None
                            records.setdefault((task.name, tuple(places), alone), record)
                case "classifications":
                    classes[task.name] = classes_of(task, each)
                case _:
                    assert_never(task.kind)
        entities.sort(key=lambda entity: (entity.start, entity.end, entity.label))
        return Extraction(
            tuple(entities),
            tuple(relations.values()),
            tuple(records.values()),
            classes,
            tokens_read=text.tokens,
            windows=len(text.windows),
            truncated_tokens=text.truncated_tokens,
        )

    def _entities(
        self, task: SchemaTask, text: SchemaText, each: Sequence[tuple[SchemaWindow, TaskScores]]
    ) -> list[Entity]:
        found = []
        for number, field in enumerate(task.fields):
            best: dict[tuple[int, int], tuple[int, float]] = {}
            for window, score in each:
                if not score.count:
                    continue
                p_WK = _probabilities(score.logits[0, number])[len(self.prefix) :]
                for first, more, p in _above(p_WK, self._least(task, field)):
                    place = (window.first + first, window.first + first + more)
                    context = int(context_in(window.first, len(p_WK), len(text.bounds), *place))
                    if context > best.get(place, (-1, 0.0))[0]:
                        best[place] = (context, p)
            spans = [(first, last, p) for (first, last), (_, p) in best.items()]
            values = _apart(text, spans)
            found += [
                Entity(field.name, int(value.start or 0), int(value.end or 0), value.text, value.score)
                for value in (values if field.many else values[:1])
            ]
        return found

    def _least(self, task: SchemaTask, field: Field) -> float:
        asked = task.threshold if field.threshold is None else field.threshold
        return self.threshold if asked is None else asked

    def _values(
        self, task: SchemaTask, field: Field, text: SchemaText, window: SchemaWindow, p_WK: Floats
    ) -> tuple[Value, ...]:
        """The values of a field of one instance; ``p_WK`` is of the choices' words, too."""
        least, chosen = self._least(task, field), len(self.prefix)
        if field.choices:
            words = [word.lower() for word in self.prefix]  # the first of equal ones counts, as in gliner2
            scored = [
                Value(choice, float(p_WK[words.index(choice.lower()), 0]), None, None)
                for choice in dict.fromkeys(field.choices)
            ]
            values = [value for value in scored if value.score >= least]
            if field.many:
                return tuple(values)
            return tuple(sorted(values, key=lambda value: -value.score)[:1])
        spans = [
            (window.first + first, window.first + first + more, p)
            for first, more, p in _above(p_WK[chosen:], least)
        ]
        values = _apart(text, spans)
        return tuple(values if field.many else values[:1])

    def _relations(
        self, task: SchemaTask, text: SchemaText, window: SchemaWindow, score: TaskScores
    ) -> Iterator[Relation]:
        for instance in _probabilities(score.logits):
            ends = [
                self._values(task, field, text, window, p_WK)
                for field, p_WK in zip(task.fields, instance, strict=True)
            ]
            if all(ends):
                yield Relation(task.name, ends[0][0], ends[1][0])

    def _records(
        self, task: SchemaTask, text: SchemaText, window: SchemaWindow, score: TaskScores
    ) -> Iterator[Record]:
        for instance in _probabilities(score.logits):
            fields = {
                field.name: self._values(task, field, text, window, p_WK)
                for field, p_WK in zip(task.fields, instance, strict=True)
            }
            if any(fields.values()):
                yield Record(task.name, fields)


def _probabilities(logits: Floats) -> Floats:
    return sigmoid(logits.astype(np.float64))  # in which probabilities near 1 still differ


def _above(p_WK: Floats, least: float) -> Iterator[tuple[int, int, float]]:
    """The first word of each probable span, how many more it has, and its probability."""
    for first, more in np.argwhere(p_WK >= least).tolist():
        if first + more < len(p_WK):
            yield first, more, float(p_WK[first, more])


def _apart(text: SchemaText, spans: Sequence[tuple[int, int, float]]) -> list[Value]:
    """Spans that share no character with a better one, best first.

    The point that is read after a text competes as a word of it, but is no part of a value.
    """
    values: list[Value] = []
    taken: list[tuple[int, int]] = []
    for first, last, p in sorted(spans, key=lambda span: -span[2]):
        start, end = int(text.bounds[first, 0]), int(text.bounds[last, 1])
        if any(start < its_end and its_start < end for its_start, its_end in taken):
            continue
        taken.append((start, end))
        if words := text.text[start:end].strip():
            values.append(Value(words, p, start, start + len(words)))
    return values


def classes_of(task: SchemaTask, each: Sequence[tuple[SchemaWindow, TaskScores]]) -> Classes:
    """The classes of a text by the scores of its windows, each of which counts by its words."""
    several_apply = task.activation == "sigmoid" or (task.activation == "auto" and task.multi_label)
    problem: ProblemType = "multi_label_classification" if several_apply else "single_label_classification"
    shares = np.array([len(window.words) for window, _ in each], dtype=np.float64)
    logits = np.stack([score.logits for _, score in each])
    p_F = (shares / shares.sum()) @ probabilities(logits, problem)
    names = [field.name for field in task.fields]
    scores = dict(zip(names, p_F.tolist(), strict=True))
    best = names[int(p_F.argmax())]
    if not task.multi_label:
        return Classes((best,), scores)
    least = 0.5 if task.threshold is None else task.threshold
    chosen = [name for name in names if scores[name] >= least] or [best]
    if task.top_k is not None:
        chosen = sorted(chosen, key=lambda name: -scores[name])[: task.top_k]
    return Classes(tuple(chosen), scores)
