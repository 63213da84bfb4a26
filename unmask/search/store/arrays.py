"""Arrays in the file of a segment, written whole or in pieces, without holding more than a piece.

Lists of different lengths are one array and its offsets.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
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


def offsets_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where each list begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(np.fromiter(lengths, dtype=np.int64)))).astype(np.int64)


def encode_strings(values: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as UTF-8 bytes and their offsets."""
    encoded = [value.encode() for value in values]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets_of(map(len, encoded))


def string_at(content: NDArray[np.uint8], offsets: NDArray[np.int64], row: int) -> str:
    """One string of `encode_strings`."""
    return bytes(content[offsets[row] : offsets[row + 1]]).decode()


def all_strings(content: NDArray[np.uint8], offsets: NDArray[np.int64]) -> list[str]:
    """Every string of `encode_strings`."""
    data, places = content.tobytes(), offsets.tolist()
    return [data[start:end].decode() for start, end in pairwise(places)]


def rows_of(offsets: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions in the flat array of the chosen lists, in the order chosen."""
    starts, lengths = offsets[chosen], offsets[chosen + 1] - offsets[chosen]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0)
    return np.asarray(within + np.repeat(starts - (ends - lengths), lengths), dtype=np.int64)
