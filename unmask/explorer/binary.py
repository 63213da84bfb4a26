"""Attention as bytes: a 16-byte header and float32 values, all little-endian.

    offset  0   uint32  magic, the characters "UMK1"
            4   uint32  rows
            8   uint32  columns
           12   uint32  kind, a member of `Kind`
           16   float32 values, row by row; `Kind` says how many stand in a cell

``web/src/api/binary.ts`` reads it.
"""

import struct
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from unmask.errors import NonFiniteResult
from unmask.explorer.interface import ExplorableView

MAGIC = b"UMK1"
HEADER = struct.Struct("<4sIII")


class Kind(IntEnum):
    """What the values are."""

    PROBABILITIES = 1
    """Attention probabilities; a row is a query, a column is a key; 1 value in a cell."""
    HEADS = 2
    """A row is a layer, a column is a head; 3 values in a cell, see `head_statistics`."""


def head_statistics(view: ExplorableView) -> npt.NDArray[np.float32]:
    """Three numbers for every head, ``(L, H, 3)``.

    0: mean entropy of its rows, as a share of log N (1: every row is uniform);
    1: largest mean mass that one key receives;
    2: mean distance between query and key, in tokens.
    """
    log_tokens = np.log(len(view)) if len(view) > 1 else 1.0
    return np.stack(
        [
            view.entropy.mean(axis=2, dtype=np.float64) / log_tokens,
            view.received.max(axis=2),
            view.distance.mean(axis=2, dtype=np.float64),
        ],
        axis=2,
    ).astype(np.float32)


def pack(kind: Kind, values: npt.NDArray[np.float32]) -> bytes:
    """Header and values; ``values`` is ``(rows, columns)`` or ``(rows, columns, per cell)``.

    A number that is not finite is refused: it must not be drawn as if it were a probability.
    """
    if not np.isfinite(values).all():
        raise NonFiniteResult("the model produced a number that is not finite; nothing is shown")
    rows, columns = values.shape[:2]
    header = HEADER.pack(MAGIC, rows, columns, kind)
    return header + np.ascontiguousarray(values, dtype="<f4").tobytes()
