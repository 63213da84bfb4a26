"""A shuffled order that is computed instead of stored: a keyed permutation of the first n numbers."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8

_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def key_of(*parts: int | str) -> int:
    """A 64-bit key from numbers and names; equal parts give equal keys on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def permute(index: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Apply a keyed permutation of ``range(count)`` to some numbers, in time proportional to their count.

    A Feistel network permutes the numbers below a power of 4 that is at least ``count``; results outside the
    range are permuted again until they are inside (cycle walking, Black & Rogaway 2002). This is for
    shuffling; it is not a cipher.

    Args:
        index: numbers from 0 to ``count`` - 1, shape (N,).
        count: how many numbers are permuted, at least 1.
        key: chooses the permutation.
    """
    return permute_each(index, count, [key], np.zeros(len(index), dtype=np.int64))


def permute_each(
    index: NDArray[np.int64], count: int, keys: Sequence[int], which: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Like `permute`, with the key ``keys[which[i]]`` for number i."""
    half = max(2, (max(count - 1, 1).bit_length() + 1) // 2)
    table = np.array([[key_of(key, round_) for key in keys] for round_ in range(ROUNDS)], dtype=np.uint64)
    result = _network(index.astype(np.uint64), half, table, which)
    outside = np.flatnonzero(result >= count)
    while len(outside):
        result[outside] = _network(result[outside], half, table, which[outside])
        outside = outside[result[outside] >= count]
    return result.astype(np.int64)


def _network(
    value: NDArray[np.uint64], half: int, table: NDArray[np.uint64], which: NDArray[np.int64]
) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = value >> bits, value & mask
    for keys in table:
        mixed = right + keys[which]
        # The finalizer of splitmix64 (Steele, Lea & Flood 2014).
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MULTIPLIERS[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[1]
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << bits) | right
