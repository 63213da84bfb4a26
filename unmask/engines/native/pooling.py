"""One vector per sequence from its tokens' states, in numpy. Free of torch."""

from typing import assert_never

import numpy as np

from unmask.engines.native.parts import Float32s
from unmask.spec import PoolingMode
from unmask.text.batch import SequenceLayout


def pooled(x_TD: Float32s, layout: SequenceLayout, mode: PoolingMode, skipped: int = 0) -> Float32s:
    """One vector per sequence, (S, D): see `PoolingMode`.

    The first ``skipped`` tokens of each sequence, which has more, are not pooled.
    """
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
