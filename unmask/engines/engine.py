"""The interface for running packed batches, so that tasks do not depend on an implementation, and the states
that one pass has computed, for heads that read some of its sequences each. Free of torch."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.spec import (
    EncoderSpec,
    MultiVector,
    PairScore,
    PooledVector,
    SparseVector,
)
from unmask.text.batch import PackedBatch

Layers = Literal["last", "all"]
"""Which hidden states: those of the last layer, or the embedding output and those of every layer."""

Floats = NDArray[np.floating[Any]]
"""float64 from an engine that computes in float64, float32 from any other."""


OUTPUTS: tuple[type, ...] = (PooledVector, MultiVector, SparseVector, PairScore)
"""The kinds of `CheckpointOutput` that an engine of one encoder computes."""


class Engine(Protocol):
    """An encoder with its weights that runs packed batches. Results are arrays on the host."""

    @property
    def spec(self) -> EncoderSpec:
        """The specification of the encoder. `logits` supports its heads."""

    @property
    def dtype(self) -> str:
        """The number format it computes in; ``int8`` if its linear layers do."""

    @property
    def device(self) -> str:
        """The torch name of the device that it computes on."""

    @property
    def outputs(self) -> tuple[type, ...]:
        """The kinds of `CheckpointOutput` that it computes."""

    def with_states(self, batch: PackedBatch) -> "Engine":
        """This engine after one pass: what it computes of sequences of the batch takes their states from it.

        So several tasks read one pass, each the texts that are its own.
        """

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """Hidden states, (T, D); for all layers (L + 1, T, D), the embedding's output first.

        Where last hidden states are mapped to another width, "last" gives them in that width, and the last of
        all layers is before the map.
        """

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """Logits of the head with that role for the batch.

        Shape (T, C) for a token head, or (M, C) if M ``tokens`` of the batch are given; (S, C) for a
        sequence head. C is the vocabulary size for a masked-LM head, else the number of classes.
        """

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> NDArray[np.float32]:
        """One vector per sequence, (S, E); the first ``skipped`` tokens of each are not pooled."""

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """One vector for each of M ``tokens`` of the batch, (M, E)."""

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """The weight of each word of the vocabulary, (V,), sequence after sequence."""

    def static_weights(self) -> NDArray[np.float32]:
        """The weight of each word of the vocabulary, (V,), of a model that weights queries by a table."""


class LastStates(Protocol):
    """What gives the last hidden states of a batch on the host."""

    @property
    def spec(self) -> EncoderSpec:
        """The specification of the encoder."""

    def hidden_states(self, batch: PackedBatch, threads: int) -> NDArray[np.float32]:
        """The states, (T, D)."""


class SequenceRows:
    """Where the states of each sequence of a batch are, found by its ids, its token types and its marks.

    Equal sequences have equal states, so any of them will do.
    """

    def __init__(self, batch: PackedBatch) -> None:
        self._first = dict(zip(_keys(batch), batch.layout.offsets[:-1].tolist(), strict=True))

    def __contains__(self, batch: PackedBatch) -> bool:
        """Whether all sequences of another batch are there, each attending to all that it holds."""
        layout = batch.layout
        plain = batch.queries_T is None and layout.unattended_T is None and layout.expansion is None
        return plain and all(key in self._first for key in _keys(batch))

    def of(self, batch: PackedBatch) -> NDArray[np.int64]:
        """The row of each token of a batch whose sequences are all there, (T,)."""
        starts = np.array([self._first[key] for key in _keys(batch)])
        rows_T: NDArray[np.int64] = batch.layout.positions_T + np.repeat(starts, batch.layout.lengths)
        return rows_T


class ComputedStates:
    """`LastStates` of which those of some sequences have been computed.

    Args:
        layers: computed them, and compute those of other sequences.
        batch: the sequences.
        states_TD: their last hidden states.
    """

    def __init__(self, layers: LastStates, batch: PackedBatch, states_TD: NDArray[np.float32]) -> None:
        self._layers, self._rows, self._states_TD = layers, SequenceRows(batch), states_TD

    @property
    def spec(self) -> EncoderSpec:
        """See `LastStates`."""
        return self._layers.spec

    def hidden_states(self, batch: PackedBatch, threads: int) -> NDArray[np.float32]:
        """See `LastStates`."""
        if batch not in self._rows:
            return self._layers.hidden_states(batch, threads)
        states_TD: NDArray[np.float32] = self._states_TD[self._rows.of(batch)]
        return states_TD


def _keys(batch: PackedBatch) -> list[tuple[bytes, bytes, bytes]]:
    layout = batch.layout
    marks_T = np.zeros(layout.token_count, np.bool_) if layout.globals_T is None else layout.globals_T
    each = [layout.rows(sequence) for sequence in range(layout.sequence_count)]
    return [
        (batch.ids_T[rows].tobytes(), batch.token_type_ids_T[rows].tobytes(), marks_T[rows].tobytes())
        for rows in each
    ]
