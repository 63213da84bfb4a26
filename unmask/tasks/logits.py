"""Logits of a head for texts of any length: in one pass if the model can read the text, else by windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_args

import numpy as np

from unmask.base.arguments import check_choice, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest, TextTooLong
from unmask.spec import EncoderSpec, role_of
from unmask.spec.encoder import head_of, logit_count
from unmask.spec.global_tokens import GlobalTokens
from unmask.spec.heads import is_per_token
from unmask.spec.roles import ROLES
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.reader import Name, Ready
from unmask.tasks.values import Logits, LongTexts
from unmask.text import Encoding
from unmask.text.tokenizer import numbered
from unmask.text.windows import Window, truncated, windows


def chosen_head(spec: EncoderSpec, role: str | None, name: str) -> str:
    """The requested role, or that of the only head.

    Raises:
        InvalidRequest: there is no such head, or no role is given and there is not exactly one head.
    """
    roles = [role_of(head) for head in spec.heads]
    if role in roles:
        return str(role)
    if role is None and len(roles) == 1:
        return roles[0]
    if not roles:
        raise InvalidRequest(f"{name} has no head; use a checkpoint that was saved with one")
    request = "no head was named" if role is None else f"head is {role!r}"
    raise InvalidRequest(f"{request}; {name} has: {', '.join(roles)}")


def logits(
    engine: Engine,
    role: str,
    encodings: Sequence[Encoding],
    *,
    global_tokens: GlobalTokens | None = None,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> Logits:
    """Logits of all texts, in the given order; see `Logits`.

    ``global_tokens`` selects the global tokens in an encoder with global attention; None uses those that
    heads of this role were trained with. ``progress`` is called with (texts done, texts in all). ``name`` is
    how error messages name the text at an index.

    Raises:
        InvalidRequest: the encoder has no such head.
        NonFiniteResult: a logit is infinity or NaN.
    """
    head = head_of(engine.spec, role)
    per_token = is_per_token(head)
    marks = ROLES[role].global_tokens if global_tokens is None else global_tokens
    empty: Floats = np.empty((0, logit_count(engine.spec, head)), dtype=np.float32)
    rows_of_each = [empty] * len(encodings)
    for chosen, batch in text_batches(engine.spec, encodings, marks, tokens_per_pass, progress):
        values = engine.logits(batch, role)
        rows = batch.layout.sequence_of_T if per_token else np.arange(len(chosen))
        require_finite(values, chosen, rows, "a logit", name=name, dtype=engine.dtype)
        for place, index in enumerate(chosen):
            rows_of_each[index] = values[batch.layout.rows(place)] if per_token else values[place : place + 1]
    lengths = [len(rows) for rows in rows_of_each]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64) if per_token else None
    return Logits(role, np.concatenate(rows_of_each) if rows_of_each else empty, offsets)


def logits_of_each(
    engine: Engine, *, role: str, encodings: Sequence[Encoding], **options: Any
) -> list[Floats]:
    """`logits` as a list: for each text (C,) of a sequence head, (N, C) of a token head."""
    values = logits(engine, role, encodings, **options)
    return [values[index] for index in range(len(encodings))]


Prediction = TypeVar("Prediction")


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much of a text a prediction is based on."""

    tokens_read: int
    """Tokens that the model read, special tokens included, each counted once."""
    windows: int
    """Passes over parts of the text; 1 if it was read whole."""
    truncated_tokens: int = 0
    """Tokens dropped from its end; only if truncation was requested."""


@dataclass(frozen=True, eq=False)
class WindowedLogits:
    """A head's logits for one text, by window."""

    encoding: Encoding
    """The text that was read."""
    windows: Sequence[Window]
    logits: Sequence[Floats]
    """For each window, (C,) for a sequence head, (N, C) for a token head."""

    @property
    def coverage(self) -> Coverage:
        """How much was read."""
        encoding = self.encoding
        return Coverage(
            tokens_read=len(encoding), windows=len(self.windows), truncated_tokens=encoding.truncated_tokens
        )

    def per_token(self) -> Floats:
        """One row for every token of the text, (N, C), each from the window that owns it."""
        first = self.logits[0]
        rows_NC = np.empty((len(self.encoding), first.shape[-1]), dtype=first.dtype)
        for window, values in zip(self.windows, self.logits, strict=True):
            rows_NC[window.tokens[window.owned]] = values[window.owned]
        return rows_NC

    def shares(self) -> Floats:
        """For each window, its share of the text: the tokens it owns over all tokens, (W,)."""
        owned = np.array([window.owned.sum() for window in self.windows], dtype=np.float64)
        shares: Floats = owned / owned.sum()
        return shares


def windowed(
    role: str,
    encodings: Sequence[Encoding],
    finish: Callable[[list[WindowedLogits]], list[Prediction]],
    *,
    max_tokens: int | None,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
) -> Ready[list[Prediction]]:
    """A task that predicts from the logits of a head for texts of any length.

    Windows are read as texts of their own, so that a long text shares passes with others as short ones do.

    Args:
        role: the head's role.
        encodings: whole texts.
        finish: from the logits of all texts to the predictions.
        max_tokens: the tokens that the model reads; None for any number.
        truncation: what to do with a longer text, see `LongTexts`.
        overlap_tokens: tokens shared by neighboring windows.
        name: how error messages name the text at an index.

    Raises:
        InvalidRequest: a choice does not exist, or the overlap does not fit into a window.
        TextTooLong: a text is too long, with ``truncation="error"``.
    """
    if overlap_tokens is not None:
        whole_number("overlap_tokens", overlap_tokens, 0)
    texts, parts = in_windows(
        encodings, max_tokens=max_tokens, truncation=truncation, overlap_tokens=overlap_tokens, name=name
    )
    return of_windows(role, texts, parts, finish, name=name)


def of_windows(
    role: str,
    texts: Sequence[Encoding],
    parts: Sequence[Sequence[Window]],
    finish: Callable[[list[WindowedLogits]], list[Prediction]],
    *,
    name: Name = numbered,
) -> Ready[list[Prediction]]:
    """`windowed` for texts whose windows are made already, one sequence of ``parts`` per text."""
    owners = [index for index, windows_of_text in enumerate(parts) for _ in windows_of_text]

    def predictions(values: Sequence[Floats]) -> list[Prediction]:
        rest = iter(values)
        return finish(
            [
                WindowedLogits(text, windows_of_text, [next(rest) for _ in windows_of_text])
                for text, windows_of_text in zip(texts, parts, strict=True)
            ]
        )

    return Ready(
        [window.encoding for windows_of_text in parts for window in windows_of_text],
        partial(logits_of_each, role=role),
        predictions,
        ("logits", role),
        lambda place: name(owners[place]),
        texts,
    )


def in_windows(
    encodings: Sequence[Encoding],
    *,
    max_tokens: int | None,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Callable[[int], str] = numbered,
) -> tuple[list[Encoding], list[list[Window]]]:
    """Each text as it is read, and its windows; see `windowed`."""
    check_choice("truncation", truncation, get_args(LongTexts))
    texts: list[Encoding] = []
    parts: list[list[Window]] = []
    for index, whole in enumerate(encodings):
        encoding = whole
        if max_tokens is not None and len(encoding) > max_tokens and truncation != "window":
            if truncation == "error":
                raise TextTooLong(
                    f"{name(index)} has {len(encoding)} tokens and the model reads at most {max_tokens}; "
                    "read it in windows (truncation='window'), or truncate it (truncation='end')",
                    original_tokens=len(encoding),
                    max_tokens=max_tokens,
                )
            encoding = truncated(encoding, max_tokens)
        texts.append(encoding)
        parts.append(windows(encoding, max_tokens, overlap_tokens, name(index)))
    return texts, parts
