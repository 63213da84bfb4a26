"""Tables of positions for the native library: rotations, and terms that are added by distance.

Free of torch but for tables of disentangled positions and relative biases, whose rows torch code computes.

Axes: P rows of a table of relative biases.
"""

from collections.abc import Callable
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.engines.native import interface
from unmask.spec import Alibi, Disentangled, RelativePositionBias, Rotary, SoftmaxAttention
from unmask.spec.attention import AttentionPosition

SHORTEST_TABLE = 512
"""Tables are made for at least so many tokens, and then for twice as many."""


class PositionTables:
    """Rotations and added terms by position, for sequences up to a length that grows by doubling.

    Args:
        biases_PH: the encoder's table of relative biases, if it has one.
    """

    def __init__(self, biases_PH: NDArray[np.float32] | None) -> None:
        self._biases_PH = biases_PH
        self._rotations: list[tuple[Rotary, int]] = []
        self._distances: list[Callable[[int], NDArray[Any]]] = []
        self._added: list[tuple[AttentionPosition, int]] = []
        self._made: tuple[int, tuple[object, object, object]] | None = None

    def rotation_of(self, mixer: SoftmaxAttention) -> int:
        """The number of a layer's rotations, or -1."""
        if not isinstance(mixer.position, Rotary):
            return -1
        return _number((mixer.position, mixer.head_width), self._rotations)

    def distances_of(self, mixer: SoftmaxAttention) -> int:
        """The number of a layer's terms by distance, or -1."""
        position = mixer.position
        if not isinstance(position, Alibi | Disentangled | RelativePositionBias):
            return -1
        number = _number((position, mixer.heads), self._added)
        if number == len(self._distances):
            self._distances.append(self._terms(position, mixer.heads))
        return number

    def _terms(
        self, position: Alibi | Disentangled | RelativePositionBias, heads: int
    ) -> Callable[[int], NDArray[Any]]:
        """What gives the terms of distances ``1 - length`` to ``length - 1``: a row a head, or one."""
        match position:
            case Alibi():
                slopes_H1 = np.array(position.slopes(heads))[:, None]
                return lambda length: -slopes_H1 * np.abs(np.arange(1 - length, length))
            case Disentangled():
                return lambda length: _rows_of_table(position, length)
            case RelativePositionBias():
                assert self._biases_PH is not None
                biases_PH = self._biases_PH
                return lambda length: _biases(position, biases_PH, length)
            case _:
                assert_never(position)

    def for_length(self, length: int) -> tuple[object, object, object]:
        """Both kinds of tables as arrays of the library, and what keeps them alive."""
        cached = self._made
        if cached is not None and cached[0] >= length:
            return cached[1]
        reach = max(SHORTEST_TABLE, 1 << (length - 1).bit_length())
        alive: list[NDArray[Any]] = []
        rotations = (interface.Table * len(self._rotations))()
        for table, (rotary, width) in zip(rotations, self._rotations, strict=True):
            angles = _angles(rotary, width, reach)
            for wave in (np.cos(angles), np.sin(angles)):
                alive.append(wave.astype(np.float32))
            table.values, table.sines = (wave.ctypes.data for wave in alive[-2:])
            table.columns = angles.shape[1]
        distances = (interface.Table * len(self._distances))()
        for table, terms in zip(distances, self._distances, strict=True):
            values = terms(reach)
            kind = np.int32 if values.dtype.kind == "i" else np.float32
            alive.append(np.ascontiguousarray(values, kind))
            table.values, table.columns, table.middle = alive[-1].ctypes.data, values.shape[1], reach - 1
        self._made = reach, (rotations, distances, alive)
        return self._made[1]


def _angles(rotary: Rotary, head_width: int, positions: int) -> NDArray[np.float64]:
    """The angle of each pair of features at each position, as `RotaryTable.of` computes it in torch."""
    width = rotary.width or head_width
    frequencies = rotary.theta ** -(np.arange(0, width, 2) / width)
    return (np.arange(positions) / rotary.scale)[:, None] * frequencies


def _rows_of_table(position: Disentangled, length: int) -> NDArray[np.int32]:
    import torch

    from unmask.kernels.distances import table_rows

    rows = table_rows(-torch.arange(1 - length, length), position)[None].int().numpy()
    return np.asarray(rows, np.int32)


def _biases(
    position: RelativePositionBias, table_PH: NDArray[np.float32], length: int
) -> NDArray[np.float32]:
    import torch

    from unmask.kernels.distances import RelativeBias

    bias = RelativeBias(position, torch.from_numpy(table_PH))
    return np.asarray(bias.terms(1 - length, 1, 2 * length - 1, bias.table_PH)[:, 0].numpy(), np.float32)


def _number(item: Any, among: list[Any]) -> int:
    """The place of an item in a list, which it joins if it is new."""
    if item not in among:
        among.append(item)
    return among.index(item)
