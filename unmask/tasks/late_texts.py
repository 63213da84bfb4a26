"""Texts as a model with one vector per token reads them: prompt, expansion, and which tokens get a vector."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.spec import (
    EncoderSpec,
    MultiVector,
    QueryExpansion,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    TextKind,
)
from unmask.tasks.prompts import encoded_after, prompt_of, spans_after
from unmask.text import Tokenizer, Truncation

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LateText:
    """One text, ready to be packed."""

    ids: Ids
    token_type_ids: Ids
    spans_N2: Ids
    """The characters of the given text that each token covers; -1, -1 for tokens that cover none."""
    has_vector: NDArray[np.bool_]
    """Which tokens get a vector."""
    unattended: tuple[int, ...]
    """Positions of tokens that no token attends to."""
    truncated_tokens: int = 0
    """Tokens that were dropped from the text's end."""

    def __len__(self) -> int:
        return len(self.ids)


def with_markers(tokenizer: Tokenizer, markers: Sequence[str]) -> Tokenizer:
    """The tokenizer, with each marker that its vocabulary has as one token that no normalization changes.

    The whole marker counts, or else its first word: PyLate stores "[Q] " with its space as one token, and
    Stanford's marker is ``[unused0]``. A marker that the vocabulary does not have stays ordinary text.
    """
    pieces, names = [], set()
    for marker in markers:
        words = marker.split(None, 1)
        name = next((name for name in (marker, *words[:1]) if tokenizer.token_to_id(name) is not None), None)
        if name is None:
            continue
        names.add(name)
        if tokenizer.engine.encode(name, add_special_tokens=False).tokens != [name]:
            pieces.append(name)
    tokenizer = replace(tokenizer, kept=tokenizer.kept | names)  # a prompt's marker is never text
    if not pieces:
        return tokenizer
    state = json.loads(tokenizer.engine.to_str())
    # A token that was added before keeps its old settings otherwise.
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in pieces]
    for piece in pieces:
        token = {"id": tokenizer.token_to_id(piece), "content": piece, "special": True, "normalized": False}
        state["added_tokens"].append(token | {"single_word": False, "lstrip": False, "rstrip": False})
    state["added_tokens"].sort(key=lambda token: token["id"])
    return replace(tokenizer, engine=tokenizers.Tokenizer.from_str(json.dumps(state)))


def limit_of(output: MultiVector, kind: TextKind, most: int | None, asked: int | None) -> int | None:
    """The most tokens of a text of a kind, before expansion; None if there is no limit.

    Args:
        output: the checkpoint's output.
        kind: the kind of text.
        most: the most that the encoder reads; None if there is no limit.
        asked: the caller's limit instead of the checkpoint's.

    Raises:
        InvalidRequest: the caller's limit is for queries that always have one length, or too large.
    """
    expansion = output.expansion if kind == "query" else None
    if asked is not None:
        if expansion is not None and expansion.truncates:
            raise InvalidRequest(
                f"max_tokens is {asked}, and queries of this model always have {expansion.length} tokens; "
                "leave it out"
            )
        if asked < 1 or (most is not None and asked > most):
            raise InvalidRequest(f"max_tokens is {asked}; it can be 1 to {most or 'any number'}")
        return asked
    limit = output.query_tokens if kind == "query" else output.document_tokens
    if expansion is not None:
        limit = expansion.length if expansion.truncates else limit and max(limit, expansion.length)
    limits = [limit for limit in (limit, most) if limit is not None]
    return min(limits, default=None)


def read_texts(
    tokenizer: Tokenizer,
    output: MultiVector,
    spec: EncoderSpec,
    texts: Sequence[str],
    kind: TextKind,
    *,
    max_tokens: int | None,
    truncation: Truncation,
    name: Callable[[int], str],
) -> list[LateText]:
    """Tokenize texts of one kind.

    Args:
        tokenizer: the checkpoint's, `with_markers`.
        output: the checkpoint's output.
        spec: its encoder.
        texts: the texts, without prompts.
        kind: queries or documents.
        max_tokens: see `limit_of`.
        truncation: see `Tokenizer.encode_batch`.
        name: how error messages name the text at an index.

    Raises:
        TextError: a text is empty, too long, or not Unicode text.
        InvalidRequest: queries are expanded, and the tokenizer has no token for that.
    """
    prompt = prompt_of(output.prompts, kind)
    encodings = encoded_after(
        tokenizer, prompt, texts, max_tokens=max_tokens, truncation=truncation, name=name
    )
    expansion = output.expansion if kind == "query" else None
    added = None if expansion is None else _added_id(tokenizer, expansion)
    skipped = _skipped_ids(tokenizer, output, kind)
    late_texts = []
    for index, encoding in enumerate(encodings):
        spans_N2 = spans_after(encoding, len(prompt))
        text = LateText(
            encoding.ids,
            encoding.token_type_ids,
            spans_N2,
            ~np.isin(encoding.ids, skipped),
            (),
            encoding.truncated_tokens,
        )
        if expansion is not None and added is not None and len(text) < expansion.length:
            text = _expanded(text, expansion, added)
            if text.unattended:
                _check_reach(spec, len(encoding), expansion.length, name(index))
        late_texts.append(text)
    return late_texts


def _added_id(tokenizer: Tokenizer, expansion: QueryExpansion) -> int:
    token_id = tokenizer.mask_id if expansion.token is None else tokenizer.token_to_id(expansion.token)
    if token_id is None:
        raise InvalidRequest(
            f"queries are expanded by the token {expansion.token or 'for masks'}, which the tokenizer lacks; "
            "use another checkpoint"
        )
    return token_id


def _skipped_ids(tokenizer: Tokenizer, output: MultiVector, kind: TextKind) -> list[int]:
    """The ids of tokens without a vector; words that are not single tokens have none."""
    if kind not in output.skipped_in:
        return []
    ids = (tokenizer.token_to_id(word) for word in output.skipped_words)
    return [id_ for id_ in ids if id_ is not None]


def _expanded(text: LateText, expansion: QueryExpansion, added: int) -> LateText:
    missing = expansion.length - len(text)
    return LateText(
        np.append(text.ids, np.full(missing, added)),
        np.append(text.token_type_ids, np.zeros(missing, dtype=np.int64)),
        np.append(text.spans_N2, np.full((missing, 2), -1), axis=0),
        np.append(text.has_vector, np.ones(missing, dtype=np.bool_)),
        () if expansion.attended else tuple(range(len(text), expansion.length)),
        text.truncated_tokens,
    )


def _check_reach(spec: EncoderSpec, tokens: int, length: int, name: str) -> None:
    """Refuse expansion tokens so far from a short query that a window of a layer shows them no token."""
    for layer in spec.layers:
        pattern = layer.mixer.pattern if isinstance(layer.mixer, SoftmaxAttention) else None
        window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
        if isinstance(window, SlidingWindow) and length - tokens > window.radius:
            raise InvalidRequest(
                f"{name} has {tokens} tokens and is expanded to {length}, and a layer reads only the "
                f"{window.radius} tokens before each; give a longer query"
            )
