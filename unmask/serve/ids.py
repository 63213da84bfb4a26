"""Token ids that a client sends instead of a text: fields of a body, and the checked `Encoding`s."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from unmask.errors import EmptyText, TextTooLong, quoted
from unmask.models.load import Model
from unmask.serve.errors import BadField
from unmask.serve.fields import STRING, Field, Inputs, Schema, Texts, check_count
from unmask.text import Encoding, Truncation
from unmask.text.windows import truncated

MOST_IDS = 1 << 20
"""The most token ids of one sequence, before a model says what it reads."""

SEQUENCE: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_ids(value: Any) -> bool:
    """Whether a list is of token ids or of lists of them, decided by its first item."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list):
        first = first[0] if first else 0
    return _is_id(first)


class Ids(Field):
    """Token ids of one sequence or of several."""

    expected = "a list of token ids, or a list of such lists"

    def _schema(self, most: int) -> Schema:
        return {"anyOf": [SEQUENCE, {"type": "array", "items": SEQUENCE, "minItems": 1, "maxItems": most}]}

    def _parse(self, name: str, value: Any, most: int) -> Inputs:
        if not isinstance(value, list):
            raise self.wrong(name, value)
        single = not (value and isinstance(value[0], list))
        rows = [value] if single and value else value
        check_count(name, rows, most)
        for index, row in enumerate(rows):
            called = name if single else f"{name}[{index}]"
            if not isinstance(row, list) or not row or not all(map(_is_id, row)):
                raise BadField(name, f"{called} is {quoted(row)}; it must be a list of token ids")
            if len(row) > MOST_IDS:
                raise BadField(
                    name,
                    f"{called} has {len(row):,} token ids; there may be {MOST_IDS:,}",
                    413,
                    "too_many_ids",
                )
        return Inputs([], rows, single)


class TextsOrIds(Texts):
    """A string, a list of strings, or token ids, as `Inputs`."""

    expected = "a string or a list of strings"

    def _schema(self, most: int) -> Schema:
        return {"anyOf": [*super()._schema(most)["anyOf"], *Ids().schema(most)["anyOf"]]}

    def _parse(self, name: str, value: Any, most: int) -> Inputs:
        return Ids().parse(name, value, most) if _are_ids(value) else super()._parse(name, value, most)


class TextsOrPairs(Field):
    """TEI's four forms: a text, a pair ``[a, b]``, a batch ``[[a], [b]]`` and a batch ``[[a, b], ...]``.

    Its value is the first texts, the second ones or None, and whether it was one text or pair.
    """

    expected = "a string, a list of two strings (a pair), or a list of lists of one string or of two"

    def _schema(self, most: int) -> Schema:
        pair = {"type": "array", "items": STRING, "minItems": 2, "maxItems": 2}
        single = {"type": "array", "items": STRING, "minItems": 1, "maxItems": 1}
        batches = [{"type": "array", "items": row, "minItems": 1, "maxItems": most} for row in (single, pair)]
        return {"anyOf": [STRING, pair, *batches]}

    def _parse(self, name: str, value: Any, most: int) -> tuple[list[str], list[str] | None, bool]:
        if isinstance(value, str):
            return [value], None, True
        if not isinstance(value, list):
            raise self.wrong(name, value)
        check_count(name, value, most)
        if all(isinstance(row, str) for row in value):
            if len(value) != 2:
                raise BadField(name, f"{name} is a list of {len(value)} strings; it must be {self.expected}")
            return [value[0]], [value[1]], True
        sizes = {len(row) if isinstance(row, list) else 0 for row in value}
        if sizes not in ({1}, {2}) or not all(isinstance(text, str) for row in value for text in row):
            raise BadField(name, f"{name} mixes forms; it must be {self.expected}")
        pairs = [row[1] for row in value] if sizes == {2} else None
        return [row[0] for row in value], cast("list[str] | None", pairs), False


def encodings_of_ids(
    model: Model, ids: Sequence[Sequence[int]], *, truncation: Truncation, name: Callable[[int], str]
) -> list[Encoding]:
    """Sequences of token ids, with the special tokens that the model's tokenizer puts around a text.

    Ids of another tokenizer would give numbers without meaning. Most are refused here, because they are
    outside the vocabulary or lack these special tokens.

    Args:
        model: what reads them.
        ids: the sequences, special tokens included.
        truncation: what to do with a sequence that is too long.
        name: how errors name the sequence at an index.

    Raises:
        BadField: an id is outside the vocabulary, or the special tokens are missing.
        EmptyText: there is nothing but special tokens.
        TextTooLong: there are more than the model reads.
    """
    tokenizer = model.tokenizer
    size = min(model.spec.embedding.vocabulary, tokenizer.vocabulary_size)
    frame = tokenizer.encode("a")
    words = np.flatnonzero(~frame.special)
    before = frame.ids[: words[0]].tolist() if len(words) else frame.ids.tolist()
    after = frame.ids[words[-1] + 1 :].tolist() if len(words) else []
    encodings = []
    for index, row in enumerate(ids):
        for token_id in row:
            if not 0 <= token_id < size:
                raise BadField(
                    "input", f"{name(index)} has the token id {token_id}; the model has 0 to {size - 1}"
                )
        inside = len(row) - len(before) - len(after)
        if inside < 0 or row[: len(before)] != before or row[len(row) - len(after) :] != after:
            around = f"begin with {before} and end with {after}" if after else f"begin with {before}"
            raise BadField(
                "input",
                f"{name(index)} must {around}, the model's special tokens; take ids from /tokenize of this "
                "server, or send texts (in LangChain: check_embedding_ctx_length=False)",
            )
        if not inside:
            raise EmptyText(f"{name(index)} has no words; give a text with at least one")
        special = np.zeros(len(row), dtype=np.bool_)
        special[: len(before)] = special[len(row) - len(after) :] = True
        encoding = Encoding.of_arrays(
            "",
            ids=np.array(row, dtype=np.int64),
            token_type_ids=np.full(len(row), frame.token_type_ids[0], dtype=np.int64),
            offsets=np.zeros((len(row), 2), dtype=np.int64),
            special=special,
            sequence_ids=np.where(special, -1, 0),
            pieces=[str(tokenizer.engine.id_to_token(token_id)) for token_id in row],
        )
        if model.max_tokens is not None and len(row) > model.max_tokens:
            if truncation == "error":
                raise TextTooLong(
                    f"{name(index)} has {len(row)} tokens and the model reads at most {model.max_tokens}; "
                    "shorten it",
                    original_tokens=len(row),
                    max_tokens=model.max_tokens,
                )
            encoding = truncated(encoding, model.max_tokens)
        encodings.append(encoding)
    return encodings
