"""Multiple-choice questions for training: the right choice, and the question with each choice as tokens."""

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidText, TextTooLong, quoted
from unmask.spec import EncoderSpec
from unmask.spec.global_tokens import has_global_tokens, places
from unmask.spec.roles import ROLES
from unmask.tasks.aligned import AlignedWindows, align
from unmask.text import Tokenizer
from unmask.training.data.labeled import LabeledSequence
from unmask.training.finetune.data_settings import DataSettings
from unmask.training.finetune.records import Labeled


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
    for windows in zip(*parts.windows, strict=True):
        encodings = [window.encoding for window in windows]
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
