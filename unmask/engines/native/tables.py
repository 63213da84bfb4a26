"""Tables of positions for the native library: rotations, terms by distance, projected tables of distances.

Free of torch.

Axes: P rows of a table of relative biases.
"""

import math
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.engines.native import interface
from unmask.engines.native.parts import Float32s, Weights, normalized
from unmask.spec import Alibi, Disentangled, RelativePositionBias, Rotary, SoftmaxAttention
from unmask.spec.attention import AttentionPosition, log_buckets

SHORTEST_TABLE = 512
"""Tables are made for at least so many tokens, and then for twice as many."""


class PositionTables:
    """Rotations and added terms by position, for sequences up to a length that grows by doubling.

    Args:
        biases_PH: the encoder's table of relative biases, if it has one.
    """

    def __init__(self, biases_PH: Float32s | None) -> None:
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

    def terms(self, number: int, length: int) -> NDArray[Any]:
        """The terms of distances ``1 - length`` to ``length - 1`` by their number: a row a head, or one."""
        return self._distances[number](length)

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
            alive.extend(wave.astype(np.float32) for wave in rotary.waves(np.arange(reach), width))
            table.values, table.sines = (wave.ctypes.data for wave in alive[-2:])
            table.columns = alive[-1].shape[1]
        distances = (interface.Table * len(self._distances))()
        for table, terms in zip(distances, self._distances, strict=True):
            values = terms(reach)
            kind = np.int32 if values.dtype.kind == "i" else np.float32
            alive.append(np.ascontiguousarray(values, kind))
            table.values, table.columns, table.middle = alive[-1].ctypes.data, values.shape[1], reach - 1
        self._made = reach, (rotations, distances, alive)
        return self._made[1]


def _rows_of_table(position: Disentangled, length: int) -> NDArray[np.int64]:
    """The row of each distance in a table of disentangled positions, as `table_rows` finds it in torch."""
    behind = -np.arange(1 - length, length)
    if position.clamped:
        behind = np.clip(behind, 1 - position.max_distance, position.max_distance - 1)
    if position.buckets:
        merged = log_buckets(int(np.abs(behind).max()) + 1, position.buckets, position.max_distance)
        behind = merged[np.abs(behind)] * np.sign(behind)
    rows: NDArray[np.int64] = np.clip(behind, -position.span, position.span - 1) + position.span
    return rows[None]


def _biases(position: RelativePositionBias, table_PH: Float32s, length: int) -> Float32s:
    """The bias of each distance for each head, from the rows that `bucket_rows` finds in torch."""
    behind = -np.arange(1 - length, length)
    each = position.buckets // 2
    exact = each // 2
    far = np.abs(behind)
    share = np.log(np.maximum(far, exact) / exact) / math.log(position.max_distance / exact)
    merged = np.minimum(exact + (share * (each - exact)).astype(np.int64), each - 1)
    rows = np.where(far < exact, far, merged) + each * (behind < 0)
    biases: Float32s = table_PH[rows].T
    return biases


def _number(item: Any, among: list[Any]) -> int:
    """The place of an item in a list, which it joins if it is new."""
    if item not in among:
        among.append(item)
    return among.index(item)


def projected(
    mixer: SoftmaxAttention, position: Disentangled, weights: Weights, prefix: str
) -> tuple[Float32s | None, Float32s | None]:
    """One layer's projections of the table, to keys and to queries, (P, H * K); None for a term it lacks.

    Args:
        mixer: the layer's attention.
        position: its positions.
        weights: the tensors of the encoder.
        prefix: of the names of the layer's tensors.
    """
    table_PD = normalized(position.table_norm, "distances.norm", weights["distances.table.weight"], weights)
    inner, shared = mixer.heads * mixer.head_width, position.shared_projections

    def project(part: int, side: str) -> Float32s:
        name, rows = (f"{prefix}.attention.distances.{side}", slice(None))
        if shared:
            name, rows = f"{prefix}.attention.qkv", slice(part * inner, (part + 1) * inner)
        product = table_PD @ weights[f"{name}.weight"][rows].T
        bias = f"{name}.bias"
        return product + weights[bias][rows] if bias in weights else product

    return (
        project(1, "key") if position.content_to_position else None,
        project(0, "query") if position.position_to_content else None,
    )
