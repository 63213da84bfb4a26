"""Logits of one of the encoder's heads for texts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec, role_of
from unmask.spec.encoder import head_of, logit_count
from unmask.spec.global_tokens import GlobalTokens
from unmask.spec.heads import is_per_token
from unmask.spec.roles import ROLES
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.progress import Progress
from unmask.tasks.values import Logits
from unmask.text import Encoding
from unmask.text.tokenizer import numbered


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
    asked = "no head was named" if role is None else f"head is {role!r}"
    raise InvalidRequest(f"{asked}; {name} has: {', '.join(roles)}")


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
