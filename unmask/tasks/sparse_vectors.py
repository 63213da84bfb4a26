"""One weight per word of the vocabulary for each text, most of them 0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest
from unmask.spec import TEXT_KINDS, SparseVector, TextKind
from unmask.spec.encoder import masked_lm_role
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.prompts import encoded_after, prompt_of, words_of
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered


@dataclass(frozen=True, eq=False)
class WordWeights:
    """The words of one text that have a weight."""

    ids: NDArray[np.int64]
    """Their ids in the vocabulary, increasing."""
    weights: NDArray[np.float32]
    """The weight of each, never 0."""
    truncated_tokens: int = 0
    """Tokens that were dropped from the text's end before the encoder read it."""

    def __post_init__(self) -> None:
        if self.ids.shape != self.weights.shape or self.ids.ndim != 1 or (np.diff(self.ids) < 1).any():
            raise InvalidRequest("the ids of words do not increase, or are not as many as the weights")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_dense(
        cls, weights_V: NDArray[np.float32], most: int | None = None, truncated_tokens: int = 0
    ) -> "WordWeights":
        """The words of a dense vector that are not 0, or only the ``most`` of the largest weights."""
        ids = np.flatnonzero(weights_V)
        if most is not None and len(ids) > most:
            ids = np.sort(ids[np.argsort(-weights_V[ids], kind="stable")[:most]])
        return cls(ids, weights_V[ids], truncated_tokens)


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    kind: TextKind = "document",
    *,
    truncation: Truncation = "error",
    name: Name = numbered,
) -> Ready[list[WordWeights]]:
    """The weights of words; arguments as of `unmask.models.model.Model.sparse_vectors`."""
    output = sparse_output(reader)
    static = output.static_queries and kind == "query"
    if not static:
        masked_lm_role(reader.spec, reader.name)
    check_choice("kind", kind, TEXT_KINDS)
    check_choice("truncation", truncation, get_args(Truncation))
    name = called(texts, name)
    encodings = encoded_after(
        reader.tokenizer,
        prompt_of(output.prompts, kind),
        several("texts", texts),
        max_tokens=None if static else reader.max_tokens,
        truncation=truncation,
        name=name,
    )
    if not static:
        return of_encodings(reader, encodings, name)
    for index, encoding in enumerate(encodings):
        words_of(encoding, reader.max_tokens, truncation, name(index))  # refuses one that is too long
    return Ready(
        encodings,
        partial(_from_table, output=output, max_tokens=reader.max_tokens),
        list,
        ("weights_of_words",),
        name,
        reads_last_states=False,
    )


def of_encodings(
    reader: Reader, encodings: Sequence[Encoding], name: Name = numbered
) -> Ready[list[WordWeights]]:
    """The weights of words of texts that are tokenized already."""
    output = sparse_output(reader)
    return Ready(encodings, partial(sparse_vectors, output=output), list, ("sparse_vectors",), name)


def sparse_output(reader: Reader) -> SparseVector:
    """The output of a checkpoint that gives weights of words.

    Raises:
        InvalidRequest: it does not.
    """
    if not isinstance(reader.output, SparseVector):
        raise InvalidRequest(
            f"{reader.name} does not give weights of words; use a checkpoint of SPLADE's kind"
        )
    return reader.output


def sparse_vectors(
    engine: Engine,
    output: SparseVector,
    encodings: Sequence[Encoding],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> list[WordWeights]:
    """The weights of each text, in the given order; see `unmask.tasks.embed.embed`.

    Raises:
        NonFiniteResult: a weight is infinity or NaN.
    """
    weights_of: dict[int, WordWeights] = {}
    for chosen, batch in text_batches(engine.spec, encodings, "none", tokens_per_pass, progress):
        for place, weights_V in enumerate(engine.word_weights(batch, output)):
            row = np.array([place])
            require_finite(weights_V[None], chosen, row, "a weight", name=name, dtype=engine.dtype)
            index = int(chosen[place])
            dropped = encodings[index].truncated_tokens
            weights_of[index] = WordWeights.of_dense(weights_V, output.most_words, dropped)
    return [weights_of[index] for index in range(len(encodings))]


def _from_table(
    engine: Engine, *, encodings: Sequence[Encoding], output: SparseVector, max_tokens: int | None, **_: Any
) -> list[WordWeights]:
    """The weights of the words of queries, for which no encoder runs."""
    ids = [words_of(encoding, max_tokens, "end", "") for encoding in encodings]
    return weights_of_words(engine.static_weights(), output, ids)


def weights_of_words(
    weights_V: NDArray[np.float32], output: SparseVector, ids: Sequence[NDArray[np.int64]]
) -> list[WordWeights]:
    """The weights of the words that each text has, from a table: its ids, without special tokens."""
    weights = []
    for row in ids:
        dense_V = np.zeros_like(weights_V)
        dense_V[row] = weights_V[row]
        weights.append(WordWeights.of_dense(dense_V, output.most_words))
    return weights
