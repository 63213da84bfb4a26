"""Texts after a prompt that a checkpoint or the caller puts before them."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, TextTooLong, quoted
from unmask.spec import PooledVector, TextKind
from unmask.spec.embedding_head import PROMPT_NAMES
from unmask.text import Encoding, Tokenizer, Truncation


def prompt_of(prompts: Sequence[tuple[str, str]], kind: TextKind) -> str:
    """The checkpoint's prompt before texts of a kind; "" for none."""
    by_name = dict(prompts)
    return next((by_name[name] for name in PROMPT_NAMES[kind] if name in by_name), "")


def chosen_prompt(output: PooledVector, prompt: str | None, prompt_name: str | None, model: str) -> str:
    """The text to put before every text: the one given or named, else the checkpoint's default; "" for none.

    Raises:
        InvalidRequest: both are given, or the checkpoint has no prompt of that name.
    """
    prompts = dict(output.prompts)
    if prompt is not None and prompt_name is not None:
        raise InvalidRequest("a prompt and the name of one were given; give one of them")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise InvalidRequest(f"prompt is {quoted(prompt)}; give a string")
        return prompt
    if prompt_name is None:
        return prompts.get(output.default_prompt or "", "")
    if prompt_name not in prompts:
        known = ", ".join(prompts) or "none"
        raise InvalidRequest(f"prompt_name is {prompt_name!r}; {model} has: {known}")
    return prompts[prompt_name]


def unpooled_tokens(tokenizer: Tokenizer, output: PooledVector, prompt: str) -> int:
    """How many tokens at the beginning of a text after a prompt are not pooled."""
    if output.pools_prompt or not prompt:
        return 0
    (encoding,) = tokenizer.encode_batch([prompt], name=lambda _: "the prompt")
    return len(encoding) - int(encoding.special[-1])


def encoded_after(
    tokenizer: Tokenizer,
    prompt: str,
    texts: Sequence[str],
    *,
    max_tokens: int | None,
    truncation: Truncation,
    name: Callable[[int], str],
) -> list[Encoding]:
    """Tokenize each text with a prompt before it; see `Tokenizer.encode_batch`.

    Raises:
        EmptyText: a text has no words of its own, or its prompt leaves no room for them.
    """
    encodings = tokenizer.encode_batch(
        [prompt + text if isinstance(text, str) else text for text in texts],
        max_tokens=max_tokens,
        truncation=truncation,
        name=name,
    )
    if prompt:
        for index, encoding in enumerate(encodings):
            spans_N2 = spans_after(encoding, len(prompt))
            if not texts[index].strip() or not (spans_N2[:, 0] < spans_N2[:, 1]).any():
                raise EmptyText(f"{name(index)} has no words after its prompt; give a text with at least one")
    return encodings


def spans_after(encoding: Encoding, prompt: int) -> NDArray[np.int64]:
    """The characters that each token covers in the text after a prompt of ``prompt`` characters.

    -1, -1 for special tokens and those of the prompt; a token of both covers the text's characters of it.
    """
    spans_N2 = encoding.offsets - prompt
    outside = (encoding.sequence_ids < 0) | (spans_N2[:, 0] < 0) & (spans_N2[:, 1] <= 0)
    return np.where(outside[:, None], -1, np.maximum(spans_N2, 0))


def words_of(
    encoding: Encoding, max_tokens: int | None, truncation: Truncation, name: str
) -> NDArray[np.int64]:
    """The ids of a text without special tokens, at most ``max_tokens`` of them.

    Raises:
        TextTooLong: there are more, and ``truncation`` is "error".
    """
    ids: NDArray[np.int64] = encoding.ids[~encoding.special]
    if max_tokens is not None and len(ids) > max_tokens and truncation == "error":
        raise TextTooLong(
            f"{name} has {len(ids)} tokens and the model reads at most {max_tokens}; shorten it, or truncate "
            "it (truncation='end', or --truncation end)",
            original_tokens=len(ids),
            max_tokens=max_tokens,
        )
    return ids[:max_tokens]
