"""Batching for all tasks: sequences of similar length together, a bounded number of tokens per batch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import not_finite
from unmask.spec import EncoderSpec
from unmask.spec.global_tokens import GlobalTokens, check_global_tokens, pack
from unmask.text import Encoding, PackedBatch, token_budget_batches

TOKENS_PER_PASS = 2048
"""Enough for matrix products at full speed, few enough for the activations to stay in cache."""

Batch = TypeVar("Batch")

Chosen = NDArray[np.int64]
"""Indices of the sequences of one batch."""


def batches(
    lengths: Sequence[int],
    packed: Callable[[Chosen], Batch],
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> Iterator[tuple[Chosen, Batch]]:
    """Each batch with the indices of its sequences; every sequence is in exactly one batch.

    Args:
        lengths: tokens of each sequence.
        packed: packs the sequences with the given indices.
        tokens_per_pass: the maximum number of tokens per batch; a longer sequence forms its own batch.
        progress: called with (sequences done, sequences in all) when the caller asks for the next batch.
    """
    done = 0
    for chosen in token_budget_batches(np.array(lengths, dtype=np.int64), tokens_per_pass):
        yield chosen, packed(chosen)
        done += len(chosen)
        if progress is not None:
            progress(done, len(lengths))


def text_batches(
    spec: EncoderSpec,
    encodings: Sequence[Encoding],
    global_tokens: GlobalTokens,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> Iterator[tuple[Chosen, PackedBatch]]:
    """The `batches` of tokenized texts."""
    check_global_tokens(global_tokens)
    return batches(
        [len(encoding) for encoding in encodings],
        lambda chosen: pack(spec, [encodings[index] for index in chosen], global_tokens),
        tokens_per_pass,
        progress,
    )


class TokenIds(Protocol):
    """Token ids that are read at once."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """Of every token, (N,)."""
        ...

    @property
    def token_type_ids(self) -> NDArray[np.int64]:
        """The type of each."""
        ...


def last_states(
    engine: Engine,
    windows: Sequence[TokenIds],
    tokens_per_pass: int,
    progress: Progress | None,
    name: Callable[[int], str],
) -> Iterator[tuple[Chosen, list[Floats]]]:
    """The last hidden states of each window of a batch, (N, D), with the indices of the windows.

    Raises:
        NonFiniteResult: a hidden state is infinity or NaN.
    """

    def packed(chosen: Chosen) -> PackedBatch:
        some = [windows[index] for index in chosen]
        return PackedBatch.of_ids([it.ids for it in some], [it.token_type_ids for it in some])

    for chosen, batch in batches([len(it.ids) for it in windows], packed, tokens_per_pass, progress):
        x_TD, layout = engine.hidden_states(batch, "last"), batch.layout
        require_finite(x_TD, chosen, layout.sequence_of_T, "a hidden state", name=name, dtype=engine.dtype)
        yield chosen, [x_TD[layout.rows(place)] for place in range(len(chosen))]


def require_finite(
    values: Floats,
    chosen: Chosen,
    rows: NDArray[np.int64],
    what: str,
    *,
    name: Callable[[int], str],
    dtype: str,
) -> None:
    """Raise `NonFiniteResult`, naming the first text with a non-finite value, unless all values are finite.

    Args:
        values: the values of one batch; the second-to-last axis is the rows.
        chosen: the indices of its sequences.
        rows: for each row, which of ``chosen`` it belongs to.
        what: what the values are, such as "the embedding".
        name: how error messages name the text at an index.
        dtype: the number format of the weights.
    """
    finite = np.isfinite(values).all(axis=-1)
    while finite.ndim > 1:
        finite = finite.all(axis=0)
    if not finite.all():
        first = int(chosen[rows[~finite]].min())
        raise not_finite(f"{what} of {name(first)}", dtype)
