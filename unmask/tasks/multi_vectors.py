"""One vector for each token of a text, for late interaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest
from unmask.spec import MultiVector
from unmask.tasks.batches import TOKENS_PER_PASS, Chosen, batches, require_finite
from unmask.tasks.late_texts import LateText
from unmask.tasks.progress import Progress
from unmask.text import PackedBatch
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


def multi_vectors(
    engine: Engine,
    output: MultiVector,
    texts: Sequence[LateText],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> list[TokenVectors]:
    """The token vectors of each text, in the given order; see `unmask.tasks.embed.embed`.

    Raises:
        NonFiniteResult: a vector contains infinity or NaN.
    """
    found: dict[int, TokenVectors] = {}

    def packed(chosen: Chosen) -> PackedBatch:
        some = [texts[index] for index in chosen]
        return PackedBatch.of_ids(
            [one.ids for one in some],
            [one.token_type_ids for one in some],
            unattended=[one.unattended for one in some],
        )

    for chosen, batch in batches([len(text) for text in texts], packed, tokens_per_pass, progress):
        given = np.concatenate([texts[index].given for index in chosen])
        e_ME = engine.token_vectors(batch, output, np.flatnonzero(given))
        counts = [int(texts[index].given.sum()) for index in chosen]
        rows = np.repeat(np.arange(len(chosen)), counts)
        require_finite(e_ME, chosen, rows, "a token vector", name=name, dtype=engine.dtype)
        for index, part_NE in zip(chosen.tolist(), np.split(e_ME, np.cumsum(counts)[:-1]), strict=True):
            text = texts[index]
            found[index] = TokenVectors(
                part_NE.copy(), text.ids[text.given], text.spans_N2[text.given], text.truncated_tokens
            )
    return [found[index] for index in range(len(texts))]
