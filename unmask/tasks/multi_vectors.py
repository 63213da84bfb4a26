"""One vector for each token of a text, for late interaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest
from unmask.spec import TEXT_KINDS, MultiVector, TextKind
from unmask.tasks.batches import TOKENS_PER_PASS, Chosen, batches, require_finite
from unmask.tasks.late_texts import LateText, limit_of, read_texts
from unmask.tasks.reader import Reader, Ready, called, several
from unmask.text import PackedBatch, Truncation
from unmask.text.tokenizer import numbered


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """The vectors of one text's tokens."""

    vectors_NE: NDArray[np.float32]
    ids_N: NDArray[np.int64]
    """The token of each vector."""
    spans_N2: NDArray[np.int64]
    """The characters of the given text that the token covers: the first, and the end (exclusive). -1, -1 for
    a special token, one of the prompt, and one that expands a query."""
    truncated_tokens: int = 0
    """Tokens that were dropped from the text's end."""

    def __post_init__(self) -> None:
        shapes = (self.vectors_NE.shape[:1], self.ids_N.shape, self.spans_N2.shape)
        count = len(self.ids_N)
        if self.vectors_NE.ndim != 2 or shapes != ((count,), (count,), (count, 2)):
            raise InvalidRequest(
                f"vectors, ids and spans have shapes {self.vectors_NE.shape}, {self.ids_N.shape} and "
                f"{self.spans_N2.shape}; give one id and one span for each vector"
            )

    def __len__(self) -> int:
        return len(self.ids_N)


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    kind: TextKind = "document",
    *,
    max_tokens: int | None = None,
    truncation: Truncation = "error",
    name: Callable[[int], str] | None = None,
) -> Ready[list[TokenVectors]]:
    """One vector per token; arguments as of `unmask.models.model.Model.multi_vectors`.

    ``name`` is how error messages name the text at an index.
    """
    output = reader.output
    if not isinstance(output, MultiVector):
        raise InvalidRequest(
            f"{reader.name} does not give one vector per token; use a checkpoint of ColBERT's kind"
        )
    check_choice("kind", kind, TEXT_KINDS)
    check_choice("truncation", truncation, get_args(Truncation))
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, 1)
    name = name or called(texts, numbered)
    late_texts = read_texts(
        reader.late_tokenizer,
        output,
        reader.spec,
        several("texts", texts),
        kind,
        max_tokens=limit_of(output, kind, reader.max_tokens, max_tokens),
        truncation=truncation,
        name=name,
    )
    return Ready(
        late_texts,
        partial(multi_vectors, output=output),
        list,
        ("multi_vectors",),
        name,
        reads_last_states=False,
    )


def multi_vectors(
    engine: Engine,
    output: MultiVector,
    encodings: Sequence[LateText],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> list[TokenVectors]:
    """The token vectors of each text, in the given order; see `unmask.tasks.embed.embed`.

    Raises:
        NonFiniteResult: a vector contains infinity or NaN.
    """
    vectors: dict[int, TokenVectors] = {}

    def packed(chosen: Chosen) -> PackedBatch:
        texts = [encodings[index] for index in chosen]
        return PackedBatch.of_ids(
            [text.ids for text in texts],
            [text.token_type_ids for text in texts],
            unattended=[text.unattended for text in texts],
        )

    for chosen, batch in batches([len(text) for text in encodings], packed, tokens_per_pass, progress):
        has_vector = np.concatenate([encodings[index].has_vector for index in chosen])
        e_ME = engine.token_vectors(batch, output, np.flatnonzero(has_vector))
        counts = [int(encodings[index].has_vector.sum()) for index in chosen]
        rows = np.repeat(np.arange(len(chosen)), counts)
        require_finite(e_ME, chosen, rows, "a token vector", name=name, dtype=engine.dtype)
        for index, part_NE in zip(chosen.tolist(), np.split(e_ME, np.cumsum(counts)[:-1]), strict=True):
            text = encodings[index]
            vectors[index] = TokenVectors(
                part_NE.copy(),
                text.ids[text.has_vector],
                text.spans_N2[text.has_vector],
                text.truncated_tokens,
            )
    return [vectors[index] for index in range(len(encodings))]
