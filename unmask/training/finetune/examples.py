"""From labeled records to tokenized texts with targets.

Axes: W words.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest, InvalidText, TextTooLong, quoted
from unmask.spec import EncoderSpec
from unmask.spec.global_tokens import has_global_tokens, places
from unmask.spec.roles import ROLES
from unmask.tasks.aligned import AlignedWindows, align
from unmask.text import Encoding, Tokenizer
from unmask.text.windows import Window, truncated, windows
from unmask.training.data.labeled import IGNORED, LabeledSequence
from unmask.training.finetune.records import Gold, Labeled
from unmask.training.finetune.settings import DataSettings, FinetuneSettings
from unmask.training.finetune.tasks import TASKS, Task
from unmask.weights import Checkpoint

_WHOLE_NUMBER = re.compile("-?[0-9]{1,18}")


@dataclass(frozen=True, eq=False)
class Example:
    """A tokenized record, in full, with its gold label."""

    record: Labeled
    encoding: Encoding
    windows: Sequence[Window]
    gold: Any
    """A class; numbers, (C,); the classes of words, (W,); the `Gold` of a question; or the right choice."""
    choices: AlignedWindows | None = None
    """A question with each of its choices; ``encoding`` and ``windows`` are those of the first choice."""


@dataclass
class Counts:
    """What was read."""

    texts: int = 0
    tokens: int = 0
    longest: int = 0
    windowed: int = 0
    """Texts read in several windows."""
    truncated: int = 0
    """Texts whose end was dropped."""
    truncated_tokens: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    """How often each label occurs, of texts or of words."""
    unanswered: int = 0
    """Questions without an answer in their context."""

    def add(self, tokens: int, longest: int, windows: int) -> None:
        """Count a text; ``longest`` are the tokens of its longest sequence."""
        self.texts += 1
        self.tokens += tokens
        self.longest = max(self.longest, longest)
        self.windowed += windows > 1


class Preparation:
    """Turns records into examples for one task, tokenizer and encoder."""

    def __init__(
        self,
        settings: FinetuneSettings,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        spec: EncoderSpec,
        max_tokens: int | None,
    ) -> None:
        self.task: Task = settings.task
        self.data = settings.data
        self.labels = tuple(labels)
        self.tokenizer = tokenizer
        self.spec = spec
        self.max_tokens = max_tokens
        self._class_of = {label: number for number, label in enumerate(labels)}

    def examples(self, records: Sequence[Labeled], counts: Counts) -> list[Example]:
        """Tokenize and check records.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidText: a label is unknown, or is not of the task's kind.
        """
        examples = []
        for record in records:
            if self.task == "multiple_choice":
                examples.append(self._question(record, counts))
                continue
            encoding = self._encoding(record)
            if self.data.long_texts == "end" and self._too_long(encoding) and self.task != "answering":
                counts.truncated += 1
                counts.truncated_tokens += len(encoding) - int(self.max_tokens or 0)
                encoding = truncated(encoding, int(self.max_tokens or 0))
            elif self.data.long_texts == "error" and self._too_long(encoding):
                raise TextTooLong(
                    f"{record.where} has {len(encoding)} tokens and the limit is {self.max_tokens}; shorten "
                    "it, or set data.long_texts to end or window",
                    original_tokens=len(encoding),
                    max_tokens=int(self.max_tokens or 0),
                )
            parts = windows(encoding, self.max_tokens, self.data.overlap_tokens, record.where)
            counts.add(len(encoding), len(encoding), len(parts))
            examples.append(Example(record, encoding, parts, self._gold(record, counts)))
        return examples

    def _question(self, record: Labeled, counts: Counts) -> Example:
        gold = right_choice(record, self.data)
        counts.labels[str(gold)] += 1
        parts = tokenized_choices(record, self.tokenizer, self.data, self.max_tokens)
        coverage, encodings = parts.coverage, parts.encodings
        counts.truncated += coverage.truncated_tokens > 0
        counts.truncated_tokens += coverage.truncated_tokens
        counts.add(coverage.tokens_read, max(map(len, encodings)), coverage.windows)
        target = np.array(gold, dtype=np.int64)
        return Example(record, encodings[0], parts.windows[0], target, parts)

    def _too_long(self, encoding: Encoding) -> bool:
        return self.max_tokens is not None and len(encoding) > self.max_tokens

    def _encoding(self, record: Labeled) -> Encoding:
        if isinstance(record.text, tuple):
            return self.tokenizer.encode_words(record.text, name=record.where)
        pairs = None if record.pair is None else [record.pair]
        return self.tokenizer.encode_batch([record.text], pairs, name=lambda _: record.where)[0]

    def _gold(self, record: Labeled, counts: Counts) -> Any:
        label = record.label
        if self.task == "answering":
            counts.unanswered += not label.answers
            return label
        if self.task == "regression":
            return np.array([_number(label, record.where)], dtype=np.float32)
        if self.task == "classification":
            return np.array(self._class(label, record.where, counts), dtype=np.int64)
        classes = [self._class(name, record.where, counts) for name in label]
        match self.task:
            case "multi_label":
                target = np.zeros(len(self.labels), dtype=np.float32)
                target[classes] = 1
                return target
            case "tagging":
                pass
            case "multiple_choice" | "retrieval":
                raise AssertionError(f"{self.task} has examples of its own")
            case _:
                assert_never(self.task)
        if not isinstance(record.text, tuple) or len(record.text) != len(classes):
            words = len(record.text) if isinstance(record.text, tuple) else "no"
            raise InvalidText(
                f"{record.where} has {words} words and {len(classes)} labels; give one for each"
            )
        return np.array(classes, dtype=np.int64)

    def _class(self, label: object, where: str, counts: Counts) -> int:
        name = label_name(label, self.data)
        if name not in self._class_of:
            raise InvalidText(
                f"{where} has the label {name!r}, which is none of {', '.join(map(repr, self.labels))}; "
                "mend it, or add it to data.labels"
            )
        counts.labels[name] += 1
        return self._class_of[name]

    def items(self, examples: Sequence[Example]) -> list[LabeledSequence]:
        """What is trained on: one item per window that has something to learn."""
        return [item for example in examples for item in self._items(example)]

    def _items(self, example: Example) -> list[LabeledSequence]:
        if self.task == "tagging":
            return [item for window in example.windows if (item := self._tagged(example, window)) is not None]
        if self.task == "answering":
            return [self._answered(example, window) for window in example.windows]
        if example.choices is not None:
            return choice_items(example.choices, example.gold, self.spec)
        return [self._item(window.encoding, example.gold) for window in example.windows]

    def _item(self, encoding: Encoding, target: NDArray[Any]) -> LabeledSequence:
        marks: tuple[int, ...] = ()
        if has_global_tokens(self.spec):
            marks = tuple(places(encoding, TASKS[self.task].head.global_tokens))
        return LabeledSequence(encoding.ids, encoding.token_type_ids, target, marks)

    def _tagged(self, example: Example, window: Window) -> LabeledSequence | None:
        """The label of each word at its first token, in the window that owns it."""
        target = word_targets(example.encoding, example.gold)[window.tokens]
        target = np.where(window.owned, target, IGNORED)
        return self._item(window.encoding, target) if (target != IGNORED).any() else None

    def _answered(self, example: Example, window: Window) -> LabeledSequence:
        """The first answer, if the window holds all of it; else the first token, as in BERT for SQuAD 2.0."""
        bounds = np.zeros(2, dtype=np.int64)
        if example.gold.answers:
            text, start = example.gold.answers[0]
            tokens = answer_tokens(window.encoding, start, start + len(text))
            if tokens is not None:
                bounds = np.array(tokens, dtype=np.int64)
        return self._item(window.encoding, bounds)


def preparation_for(
    settings: FinetuneSettings, labels: Sequence[str], checkpoint: Checkpoint, spec: EncoderSpec
) -> Preparation:
    """The preparation for a checkpoint, whose texts are as long as both settings and checkpoint allow."""
    limits = [limit for limit in (settings.data.max_tokens, checkpoint.max_tokens) if limit is not None]
    return Preparation(settings, labels, checkpoint.tokenizer, spec, min(limits, default=None))


def word_targets(encoding: Encoding, classes_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each token the class of its word if it is the word's first, else `IGNORED`, (N,).

    ``classes_W`` has a class for every word that the caller gave; a word without a token has no target.
    """
    assert encoding.words is not None
    target = np.full(len(encoding), IGNORED, dtype=np.int64)
    tokens = np.flatnonzero(encoding.words >= 0)
    words, first = np.unique(encoding.words[tokens], return_index=True)
    target[tokens[first]] = classes_W[words]
    return target


def answer_tokens(encoding: Encoding, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that share a character with a range of the context; None if the encoding
    does not hold all of the range."""
    offsets, context = encoding.offsets, encoding.sequence_ids == 1
    inside = context & (offsets[:, 0] < end) & (offsets[:, 1] > start)
    tokens = np.flatnonzero(inside)
    if not len(tokens):
        return None
    first, last = int(tokens[0]), int(tokens[-1])
    return (first, last) if offsets[first, 0] <= start and offsets[last, 1] >= end else None


def check_kinds(records: Sequence[Labeled], task: Task) -> None:
    """Refuse labels that are not of the task's kind, such as a list where one label is wanted.

    Raises:
        InvalidText: the first such record.
    """
    for record in records:
        label = record.label
        if task == "answering":
            if not isinstance(label, Gold):
                raise InvalidText(f"{record.where} is not a question with answers; use SQuAD's layout")
        elif task == "multiple_choice":
            if record.choices is None:
                raise InvalidText(f"{record.where} has no choices; give a table with columns for them")
        elif task in ("multi_label", "tagging"):
            if not isinstance(label, list | tuple):
                raise InvalidText(f"{record.where} has {quoted(label)} as its labels; {task} needs a list")
            for name in label:
                _check_label(name, record.where)
        elif not isinstance(label, str | int | float):
            kind = "a number" if task == "regression" else "one label"
            raise InvalidText(f"{record.where} has {quoted(label)} as its label; {task} needs {kind}")
        elif task != "regression":
            _check_label(label, record.where)


def _check_label(label: object, where: str) -> None:
    """Refuse what is no label: an empty cell, which pandas reads as NaN, or a value of another kind."""
    missing = label is None or (isinstance(label, float) and np.isnan(label))
    if missing or (isinstance(label, str) and not label.strip()):
        raise InvalidText(f"{where} has an empty label; give it one, or leave the row out")
    if not isinstance(label, str | int | float):
        raise InvalidText(f"{where} has {quoted(label)} as a label; give text or a number")


def label_name(label: object, data: DataSettings) -> str:
    """A label of the data as the head calls it.

    Whole numbers are written without a point: a column of integers in which a cell is missing is stored as
    floating-point numbers.
    """
    name = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
    return data.rename_labels.get(name, name)


def labels_of(records: Sequence[Labeled], settings: FinetuneSettings) -> tuple[str, ...]:
    """The labels of a task, in the order of its head: of numbers if all are whole numbers, else of text.

    Raises:
        InvalidRequest: there is only one, so nothing can be learned, or two differ in white space alone.
    """
    data = settings.data
    if not TASKS[settings.task].has_labels:
        return ()
    if data.labels:
        return data.labels
    single = settings.task == "classification"
    names = {
        label_name(value, data)
        for record in records
        for value in ([record.label] if single else record.label)
    }
    if len(names) < 2:
        raise InvalidRequest(
            f"the training data have one label, {', '.join(names) or 'none'}, so there is nothing to learn; "
            "check data.label"
        )
    bare: dict[str, str] = {}
    for name in sorted(names):
        other = bare.setdefault(" ".join(name.split()), name)
        if other != name:
            raise InvalidRequest(
                f"the labels {other!r} and {name!r} differ in white space alone; mend the data, or make them "
                "one with data.rename_labels"
            )
    if all(_WHOLE_NUMBER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names, key=_tag_order))


def class_weights(settings: FinetuneSettings, labels: Sequence[str], counts: Counts) -> list[float] | None:
    """The factor of each label's loss; ``balanced`` gives all labels the same sum of factors.

    Raises:
        InvalidRequest: a label that is to be balanced does not occur.
    """
    if settings.class_weights != "balanced":
        return None if settings.class_weights is None else list(settings.class_weights)
    absent = [label for label in labels if not counts.labels[label]]
    if absent:
        raise InvalidRequest(
            f"class_weights is balanced and no training text has the label {absent[0]}; give numbers, or "
            "take it out of data.labels"
        )
    total = sum(counts.labels.values())
    return [total / (len(labels) * counts.labels[label]) for label in labels]


def _tag_order(label: str) -> tuple[bool, str]:
    return (label != "O", label)


def _number(value: object, where: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise InvalidText(f"{where} has {value!r} as its number; give a finite number")
    return number


def right_choice(record: Labeled, data: DataSettings) -> int:
    """The number of the right choice, counted from 0.

    A label is that number, or the text of the choice. In a table without types both are strings, so a string
    that is the text of one choice and the number of another is refused.

    Raises:
        InvalidText: the label is neither, or could be either.
    """
    choices, label = record.choices or (), record.label
    numbers: set[int] = set()
    if isinstance(label, str):
        name = data.rename_labels.get(label, label)
        numbers = {number for number, choice in enumerate(choices) if choice == name}
        numbers |= {int(name)} if name.isdecimal() else set()
    elif isinstance(label, int) and not isinstance(label, bool):
        numbers = {label}
    numbers &= set(range(len(choices)))
    if not numbers:
        raise InvalidText(
            f"{record.where} has {quoted(label)} as its label; give the number of the right choice, from 0 "
            f"to {len(choices) - 1}, or its text"
        )
    if len(numbers) > 1:
        fitting = " and ".join(map(str, sorted(numbers)))
        raise InvalidText(
            f"{record.where} has {quoted(label)} as its label, which fits the choices {fitting}; use JSON "
            "lines, where a number without quotes is the number of a choice"
        )
    return numbers.pop()


def tokenized_choices(
    record: Labeled, tokenizer: Tokenizer, data: DataSettings, max_tokens: int | None
) -> AlignedWindows:
    """A question with each of its choices, as `unmask.models.model.Model.choose` reads them.

    Raises:
        TextError: a text is empty, too long, or not Unicode text.
        InvalidText: the question is a list of words.
    """
    if not isinstance(record.text, str):
        raise InvalidText(f"{record.where} has a list of words as its question; give a text")
    choices = [
        choice if record.pair is None else f"{record.pair} {choice}" for choice in record.choices or ()
    ]
    encodings = tokenizer.encode_batch(
        [record.text] * len(choices),
        choices,
        name=lambda _: record.where,
        pair_name=lambda index: f"choice {index + 1} of {record.where}",
    )
    longest = max(map(len, encodings))
    if data.long_texts == "error" and max_tokens is not None and longest > max_tokens:
        raise TextTooLong(
            f"{record.where} has {longest} tokens with its longest choice and the limit is {max_tokens}; "
            "shorten it, or set data.long_texts to end or window",
            original_tokens=longest,
            max_tokens=max_tokens,
        )
    return align(
        encodings,
        max_tokens=max_tokens,
        truncation=data.long_texts,
        overlap_tokens=data.overlap_tokens,
        name=record.where,
    )


def choice_items(
    parts: AlignedWindows, target: NDArray[np.int64], spec: EncoderSpec
) -> list[LabeledSequence]:
    """What is trained on: for each window of the question, one item with all choices."""
    items = []
    for of_question in zip(*parts.windows, strict=True):
        encodings = [window.encoding for window in of_question]
        lengths = tuple(map(len, encodings))
        starts = np.cumsum((0, *lengths)).tolist()
        marks: tuple[int, ...] = ()
        if has_global_tokens(spec):
            marks = tuple(
                start + place
                for start, encoding in zip(starts, encodings, strict=False)
                for place in places(encoding, ROLES["choice"].global_tokens)
            )
        ids, types = (
            np.concatenate([getattr(encoding, name) for encoding in encodings])
            for name in ("ids", "token_type_ids")
        )
        items.append(LabeledSequence(ids, types, target, marks, lengths))
    return items
