"""Lists of different lengths as one array and its offsets."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


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
