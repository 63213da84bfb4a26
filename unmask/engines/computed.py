"""Hidden states that one pass has computed, for heads that read some of its sequences each. Free of torch."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.spec import EncoderSpec
from unmask.text.batch import PackedBatch


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
