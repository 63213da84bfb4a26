"""One vector per sequence from its tokens' states: `unmask.encoder.heads` in numpy.

Axes: E numbers of a sequence's vector.
"""

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.spec import PooledVector, PoolingMode, UnitLength
from unmask.text.batch import SequenceLayout, check_unpooled

Float32s = NDArray[np.float32]
SMALLEST_LENGTH = 1e-12
"""A vector shorter than this is divided by it instead of by its length, as torch does."""


def has_dense_layers(output: PooledVector) -> bool:
    """Whether an output has layers after pooling that are torch modules."""
    return any(not isinstance(layer, UnitLength) for layer in output.projections)


def pooled(x_TD: Float32s, layout: SequenceLayout, output: PooledVector, *, skipped: int = 0) -> Float32s:
    """Sentence embeddings from the last hidden states, (S, E), for an output without dense layers.

    The first ``skipped`` tokens of each sequence are not pooled.

    Raises:
        InvalidRequest: a sequence has no token to pool.
    """
    check_unpooled(layout, skipped)
    e_SE = np.concatenate([_pool(x_TD, layout, mode, skipped) for mode in output.pooling], axis=1)
    for _ in output.projections:
        e_SE = _unit_length(e_SE)
    e_SE = e_SE[:, : output.dimensions]
    return _unit_length(e_SE) if output.normalize else e_SE


def _pool(x_TD: Float32s, layout: SequenceLayout, mode: PoolingMode, skipped: int) -> Float32s:
    starts_S = layout.offsets[:-1] + skipped
    if mode == "cls":
        return x_TD[starts_S]
    if mode == "last":
        return x_TD[layout.offsets[1:] - 1]
    lengths_S1: Float32s = (layout.lengths - skipped)[:, None].astype(np.float32)
    if mode == "weighted_mean":
        x_TD = x_TD * (layout.positions_T + 1)[:, None].astype(np.float32)
    reduce = np.maximum if mode == "max" else np.add
    if skipped:
        # Pairs of the first and the last token: every second range, from the end of one sequence to the
        # first pooled token of the next, is dropped.
        ends = np.stack((starts_S, layout.offsets[1:]), axis=1).reshape(-1)[:-1]
        pooled_SD = reduce.reduceat(x_TD, ends, axis=0)[::2]
    else:
        pooled_SD = reduce.reduceat(x_TD, starts_S, axis=0)
    match mode:
        case "max":
            return pooled_SD
        case "mean":
            divisors_S1 = lengths_S1
        case "mean_sqrt_len":
            divisors_S1 = np.sqrt(lengths_S1, dtype=np.float32)
        case "weighted_mean":
            divisors_S1 = (lengths_S1 * (2 * skipped + 1 + lengths_S1) / 2).astype(np.float32)  # of positions
        case _:
            assert_never(mode)
    return np.divide(pooled_SD, divisors_S1, dtype=np.float32)


def _unit_length(e_SE: Float32s) -> Float32s:
    lengths_S1: Float32s = np.maximum(np.linalg.norm(e_SE, axis=1, keepdims=True), SMALLEST_LENGTH)
    return np.divide(e_SE, lengths_S1, dtype=np.float32)
