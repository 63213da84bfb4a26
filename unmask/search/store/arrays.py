"""Append arrays to the file of a segment, whole or in pieces, without holding more than a piece."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.search.store.blocks import AT_ONCE, BlockWriter
from unmask.search.store.manifest import DTYPES, StoredArray

ALIGNMENT = 64
"""Each array begins at a multiple of this many bytes."""

HEADER = b"unmask segment\n".ljust(ALIGNMENT, b"\0")
"""How a file of arrays begins, also one without any."""

Array = NDArray[Any]
Pieces = Array | Iterable[Array]
"""An array, or its parts along the first axis in order."""


def write_array(file: BlockWriter, name: str, pieces: Pieces) -> StoredArray:
    """Append one array; where it is.

    Raises:
        InvalidRequest: it has no pieces, or they are not of one plain type and one or two axes.
    """
    file.align(ALIGNMENT)
    offset, length, first = file.bytes, 0, None
    for given in [pieces] if isinstance(pieces, np.ndarray) else pieces:
        piece = np.asarray(given)
        piece = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
        if piece.dtype.str not in DTYPES or piece.ndim not in (1, 2):
            raise InvalidRequest(
                f"array {name} has a piece of type {piece.dtype} with {piece.ndim} axes; "
                "numbers of up to 64 bits and booleans with 1 or 2 axes can be stored"
            )
        if first is None:
            first = piece[:0]
        elif (piece.dtype, piece.shape[1:]) != (first.dtype, first.shape[1:]):
            raise InvalidRequest(
                f"array {name} has pieces of {first.dtype} {first.shape[1:]} and of {piece.dtype} "
                f"{piece.shape[1:]}; give all of them one type and one width"
            )
        write_piece(file, piece)
        length += len(piece)
    if first is None:
        raise InvalidRequest(f"array {name} has no pieces, so its type is unknown; give it an empty array")
    return StoredArray(first.dtype.str, (length, *first.shape[1:]), offset)


def write_piece(file: BlockWriter, piece: Array) -> None:
    """Append the bytes of a piece; one that is not contiguous is copied in small parts."""
    if not piece.size:
        return
    row_bytes = piece.nbytes // len(piece)
    step = len(piece) if piece.flags.c_contiguous else max(1, AT_ONCE // row_bytes)
    for start in range(0, len(piece), step):
        file.write(np.ascontiguousarray(piece[start : start + step]).data.cast("B"))
