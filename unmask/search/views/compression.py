"""Compression of vectors: of tokens, and of passages (dense).

**Vectors of tokens.** Bits are those of ColBERTv2 (Santhanam et al. 2022). A vector is stored as the number
of its nearest centroid and, for each of its E numbers, one of ``2 ** bits`` buckets of the residual. Cutoffs
of the buckets are quantiles of residuals, and a bucket stands for the quantile in its middle. A decoded
vector is the centroid plus these values, divided by its length.

Three things differ from the paper. Vectors are first turned by a random rotation, which changes no product
of two vectors and makes the variances of their numbers alike, for all numbers share the same buckets. Numbers
of centroids take 16 bits and not 32, so that there are at most 65,536. And centroids are learned from the
vectors of the first commit of an index, because documents arrive as a stream; those of later additions are
encoded with the same centroids.

**Vectors of passages** get codes, one for each number: 8 bits for the place between the smallest and the
largest value of this dimension, or 1 bit for the side of its mean, after a random rotation (`Quantizer`).
Codes are a first stage that reads 4 or 32 times fewer bytes than float32; its best candidates are scored by
the vectors in float32 where these are stored, else by what their codes stand for, with the query in float32.

Axes: N vectors; E features; K centroids; B bytes of a code; W words of 8 of them; C clusters.
"""

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.engines.native import interface
from unmask.engines.native.library import call, library_reason
from unmask.engines.native.threads import thread_count
from unmask.tasks.multi_vectors import TokenVectors

Floats = NDArray[np.float32]
Codes = NDArray[np.uint16]
Packed = NDArray[np.uint8]

MOST_CENTROIDS = 1 << 16
"""Codes take 16 bits."""

SAMPLE = 16
"""Vectors per centroid that centroids are learned from, and at least as many as each must stand for."""

HELD_OUT = 50_000
"""The most vectors that buckets are learned from. They are not among those that centroids were learned from,
which lie nearer to them than others do."""

ITERATIONS = 4
"""Iterations of k-means, as in PLAID (Santhanam et al. 2022)."""

NUMBERS_AT_ONCE = 1 << 22
"""Numbers that are in memory at once, 16 MB: of vectors, or of their products with centroids."""


QUANTIZED_SAMPLE = 100_000
"""The most dense vectors that ranges and means are learned from."""

SMALLEST_STEP = 1e-6
"""The least distance of two codes; all values of a dimension can be alike."""

CODES_AT_ONCE = 1024
"""Codes of 8 bits that are converted at once: numbers that stay in the cache of one core."""

WORDS_AT_ONCE = 16384
"""Codes of one bit for each number that are compared at once."""


def centroid_count(vectors: int) -> int:
    """How many centroids stand for so many vectors: the power of two below ``16 * sqrt(vectors)`` (PLAID).

    At most 65,536, and at most one for 16 vectors, which decides below 65,536 vectors.
    """
    wanted = min(16 * math.sqrt(vectors), vectors / SAMPLE, MOST_CENTROIDS)
    return 1 << max(0, int(math.log2(max(1.0, wanted))))


@cache
def _float16_numbers() -> Floats:
    """Every number of float16 in float32, in the order of its bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def as_float32(values: NDArray[np.float16]) -> Floats:
    """Numbers of float16 in float32, looked up, which takes half as long as numpy's conversion."""
    return np.take(_float16_numbers(), np.ascontiguousarray(values).view(np.uint16))


@dataclass(frozen=True, eq=False)
class Codec:
    """A rotation, centroids and buckets, which encode vectors of length 1 and decode them, rotated."""

    rotation_EE: Floats
    """An orthogonal matrix; vectors are multiplied with it from the right."""
    centroids_KE: NDArray[np.float16]
    cutoffs: Floats
    """Where buckets of a residual end, in ascending order, ``2 ** bits - 1`` of them."""
    values: Floats
    """The residual that each bucket stands for."""

    @classmethod
    def learn(cls, vectors_NE: NDArray[np.float16], bits: int) -> "Codec":
        """Centroids by k-means on the sphere, and buckets of what they leave, of vectors of length 1.

        Samples are drawn with a fixed seed, so the same vectors give the same codec on one machine.

        Args:
            vectors_NE: vectors of length 1; a sample of them is used.
            bits: 1, 2 or 4 for each number.
        """
        count = centroid_count(len(vectors_NE))
        drawn = np.random.default_rng(0).permutation(len(vectors_NE))
        learned = drawn[: SAMPLE * count]
        held_out = drawn[len(learned) :][:HELD_OUT]
        # Where few vectors are left, buckets are learned from all of the sample.
        held_out = held_out if len(held_out) >= min(len(learned), HELD_OUT) // 2 else drawn[:HELD_OUT]
        rotation_EE = _rotation(vectors_NE.shape[1])
        centroids_KE = _centroids(as_float32(vectors_NE[np.sort(learned)]) @ rotation_EE, count)
        rest_NE = as_float32(vectors_NE[np.sort(held_out)]) @ rotation_EE
        residuals = rest_NE - as_float32(centroids_KE)[nearest_rows(rest_NE, as_float32(centroids_KE))]
        levels = 2**bits
        if not residuals.size:
            residuals = np.zeros(1, np.float32)
        # Middles of buckets and their ends, in turn.
        quantiles = np.quantile(residuals, np.arange(1, 2 * levels) / (2 * levels)).astype(np.float32)
        return cls(rotation_EE, centroids_KE, quantiles[1::2], quantiles[::2])

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Codec":
        """What `arrays` gave."""
        names = ("rotation", "centroids", "cutoffs", "values")
        return cls(*(arrays[f"codec/{name}"] for name in names))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For the store."""
        return {
            "codec/rotation": self.rotation_EE,
            "codec/centroids": self.centroids_KE,
            "codec/cutoffs": self.cutoffs,
            "codec/values": self.values,
        }

    @property
    def bits(self) -> int:
        """Bits of one number of a residual."""
        return len(self.values).bit_length() - 1

    @property
    def vector_bytes(self) -> int:
        """Bytes of one encoded vector."""
        return 2 + packed_width(self.centroids_KE.shape[1], self.bits)

    @cached_property
    def centroids(self) -> Floats:
        """The centroids in float32, (K, E)."""
        return as_float32(self.centroids_KE)

    def rotated(self, vectors_NE: Floats) -> Floats:
        """Vectors in the basis of the centroids and of what `decode` returns, as those of a query must be."""
        return vectors_NE @ self.rotation_EE

    def encode(self, vectors_NE: NDArray[np.float16]) -> tuple[Codes, Packed]:
        """The centroid of each vector, (N,), and the buckets of its residual, (N, B)."""
        count, width = vectors_NE.shape
        codes_N = np.empty(count, np.uint16)
        packed_NB = np.empty((count, packed_width(width, self.bits)), np.uint8)
        for part in _parts(count, width):
            block_NE = self.rotated(as_float32(vectors_NE[part]))
            codes = nearest_rows(block_NE, self.centroids)
            codes_N[part] = codes
            packed_NB[part] = self._packed(block_NE - self.centroids[codes])
        return codes_N, packed_NB

    def decode(self, codes_N: Codes, packed_NB: Packed) -> Floats:
        """The vectors that codes stand for, of length 1 and rotated, (N, E)."""
        width = self.centroids.shape[1]
        vectors_NE = np.take(self.values_of_byte, packed_NB, axis=0).reshape(len(codes_N), -1)[:, :width]
        vectors_NE = vectors_NE + np.take(self.centroids, codes_N, axis=0)
        lengths_N = np.sqrt(np.einsum("NE,NE->N", vectors_NE, vectors_NE))
        vectors_NE /= np.maximum(lengths_N, 1e-12)[:, None]
        return np.asarray(vectors_NE, dtype=np.float32)

    def error(self, vectors_NE: NDArray[np.float16], codes_N: Codes, packed_NB: Packed) -> float:
        """1 minus the cosine of a vector with what was stored of it, the mean over vectors; 0 without any."""
        total = 0.0
        for part in _parts(len(codes_N), len(self.centroids)):
            decoded_NE = self.decode(codes_N[part], packed_NB[part])
            products = np.einsum("NE,NE->N", self.rotated(as_float32(vectors_NE[part])), decoded_NE)
            total += float((1 - products.astype(np.float64)).sum())
        return total / max(1, len(codes_N))

    @cached_property
    def values_of_byte(self) -> Floats:
        """The residuals that each byte stands for, (256, numbers in a byte)."""
        shifts = self.bits * np.arange(8 // self.bits)
        buckets = (np.arange(256)[:, None] >> shifts) & (len(self.values) - 1)
        return np.take(self.values, buckets)

    def _packed(self, residuals_NE: Floats) -> Packed:
        """The bucket of each number; the first number of a byte is in its lowest bits."""
        per_byte = 8 // self.bits
        count, width = residuals_NE.shape
        buckets = np.zeros((count, packed_width(width, self.bits) * per_byte), np.uint8)
        for cutoff in self.cutoffs:
            buckets[:, :width] += residuals_NE > cutoff
        shifts = (self.bits * np.arange(per_byte)).astype(np.uint8)
        packed_NB: Packed = np.bitwise_or.reduce(buckets.reshape(count, -1, per_byte) << shifts, axis=2)
        return packed_NB


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Codes of 8 bits or 1 bit for each number of dense vectors, which are of length 1.

    A code c stands for ``center + c * step`` of its dimension, with c from -127.5 to 127.5 in 8 bits, and -1
    or 1 in one bit. Decoded vectors are divided by their lengths.
    """

    rotation_EE: Floats
    """An orthogonal matrix that vectors are multiplied with from the right, or (0, E) for none."""
    center_E: Floats
    step_E: Floats
    bits: int

    @classmethod
    def learn(cls, vectors_NE: Floats, bits: int) -> "Quantizer":
        """The quantizer of a sample of vectors; drawn with a fixed seed, so that the same give the same.

        Args:
            vectors_NE: vectors of length 1, of which at most `QUANTIZED_SAMPLE` are used.
            bits: 8 learns the smallest and the largest value of each dimension. 1 learns the mean of each
                dimension after a random rotation, and the mean distance from it.
        """
        drawn = np.random.default_rng(0).permutation(len(vectors_NE))[:QUANTIZED_SAMPLE]
        sample_NE = np.asarray(vectors_NE[np.sort(drawn)], np.float32)
        if bits == 8:
            low_E, high_E = sample_NE.min(axis=0), sample_NE.max(axis=0)
            step_E = np.maximum((high_E - low_E) / 255, SMALLEST_STEP).astype(np.float32)
            return cls(np.empty((0, sample_NE.shape[1]), np.float32), (low_E + high_E) / 2, step_E, bits)
        rotation_EE = _rotation(sample_NE.shape[1])
        rotated_NE = sample_NE @ rotation_EE
        mean_E = rotated_NE.mean(axis=0)
        step_E = np.maximum(np.abs(rotated_NE - mean_E).mean(axis=0), SMALLEST_STEP)
        return cls(rotation_EE, mean_E, step_E.astype(np.float32), bits)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Quantizer":
        """What `arrays` gave."""
        rotation_EE, center_E, step_E, bits = (
            arrays[f"quantizer/{name}"] for name in ("rotation", "center", "step", "bits")
        )
        return cls(rotation_EE, center_E, step_E, int(bits[0]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For the store."""
        return {
            "quantizer/rotation": self.rotation_EE,
            "quantizer/center": self.center_E,
            "quantizer/step": self.step_E,
            "quantizer/bits": np.array([self.bits]),
        }

    @property
    def vector_bytes(self) -> int:
        """Bytes of the code of one vector; those of one bit are filled up to a multiple of 8."""
        return self.width if self.bits == 8 else 8 * -(-self.width // 64)

    @property
    def width(self) -> int:
        """E, the numbers of a vector."""
        return len(self.center_E)

    def rotated(self, vectors: Floats) -> Floats:
        """Vectors, (N, E) or (E,), in the basis of the codes."""
        return vectors @ self.rotation_EE if len(self.rotation_EE) else vectors

    def encode(self, vectors_NE: Floats) -> Packed:
        """The code of each vector, (N, B); the bytes of 8 bits are c + 127.5."""
        codes_NB = np.zeros((len(vectors_NE), self.vector_bytes), np.uint8)
        for part in _parts(len(vectors_NE), self.width):
            rest_NE = self.rotated(np.asarray(vectors_NE[part], np.float32)) - self.center_E
            if self.bits == 8:
                codes_NB[part] = np.clip(np.rint(rest_NE / self.step_E + 127.5), 0, 255)
            else:
                bits_NB = np.packbits(rest_NE > 0, axis=1)
                codes_NB[part, : bits_NB.shape[1]] = bits_NB
        return codes_NB

    def decode(self, codes_NB: Packed) -> Floats:
        """The vectors that codes stand for, of length 1, (N, E), in the basis of the given vectors."""
        rotated_NE = self._rotated_vectors(codes_NB)
        return rotated_NE @ self.rotation_EE.T if len(self.rotation_EE) else rotated_NE

    def products(self, query_E: Floats, codes_NB: Packed) -> Floats:
        """The products of a query with what codes stand for, (N,); the query is rotated, and no vector."""
        return self._rotated_vectors(codes_NB) @ self.rotated(query_E)

    def _rotated_vectors(self, codes_NB: Packed) -> Floats:
        """The vectors that codes stand for, of length 1, in the basis of the codes."""
        if self.bits == 8:
            signed_NE = codes_NB - np.float32(127.5)
        else:
            signed_NE = np.unpackbits(codes_NB, axis=1, count=self.width) * np.float32(2) - np.float32(1)
        vectors_NE = self.center_E + signed_NE * self.step_E
        vectors_NE /= np.maximum(np.sqrt(np.einsum("NE,NE->N", vectors_NE, vectors_NE)), 1e-12)[:, None]
        return np.asarray(vectors_NE, np.float32)

    def error(self, vectors_NE: Floats, codes_NB: Packed) -> float:
        """1 minus the cosine of a vector with what its code stands for, the mean over vectors."""
        total = 0.0
        for part in _parts(len(codes_NB), self.width):
            products = np.einsum("NE,NE->N", vectors_NE[part], self.decode(codes_NB[part]))
            total += float((1 - products.astype(np.float64)).sum())
        return total / max(1, len(codes_NB))

    def near(self, query_E: Floats, codes_NB: Packed) -> Floats | NDArray[np.int16]:
        """How near vectors are to a query by their codes alone, (N,); the largest is the nearest.

        With 8 bits it is the product of the query with what codes stand for, up to a constant and before they
        are divided by their lengths, float32. With one bit it is minus the number of bits in which the code
        of the query differs, int16.
        """
        return self._products(query_E, codes_NB) if self.bits == 8 else self._agreement(query_E, codes_NB)

    def _products(self, query_E: Floats, codes_NB: Packed) -> Floats:
        products_N = np.empty(len(codes_NB), np.float32)
        weighted_E = np.asarray(query_E * self.step_E, np.float32)
        if library_reason("float32") is None:
            near = interface.Near(weighted=weighted_E.ctypes.data, products=products_N.ctypes.data)
            _compare_natively(near, codes_NB, self.width)
            return products_N
        block_NE = np.empty((CODES_AT_ONCE, self.width), np.float32)
        for start in range(0, len(codes_NB), CODES_AT_ONCE):
            part = codes_NB[start : start + CODES_AT_ONCE]
            # Numbers of a block are converted in the cache of the processor; numpy multiplies no bytes.
            np.copyto(block_NE[: len(part)], part)
            np.dot(block_NE[: len(part)], weighted_E, out=products_N[start : start + len(part)])
        return products_N

    def _agreement(self, query_E: Floats, codes_NB: Packed) -> NDArray[np.int16]:
        asked_W = self.encode(query_E[None])[0].view(np.uint64)
        agreement_N = np.zeros(len(codes_NB), np.int16)
        if library_reason("float32") is None:
            near = interface.Near(asked=asked_W.ctypes.data, agreement=agreement_N.ctypes.data)
            _compare_natively(near, codes_NB, self.width)
            return agreement_N
        words_NW = np.ascontiguousarray(codes_NB).view(np.uint64)
        for start in range(0, len(words_NW), WORDS_AT_ONCE):
            block_NW = words_NW[start : start + WORDS_AT_ONCE]
            for word, asked in enumerate(asked_W):
                agreement_N[start : start + len(block_NW)] -= np.bitwise_count(block_NW[:, word] ^ asked)
        return agreement_N


def _compare_natively(near: interface.Near, codes_NB: Packed, width: int) -> None:
    codes_NB = np.ascontiguousarray(codes_NB)
    near.codes, near.threads = codes_NB.ctypes.data, thread_count()
    (near.rows, near.bytes), near.width = codes_NB.shape, width
    call("native_near", near)


def packed_width(width: int, bits: int) -> int:
    """B, the bytes of ``width`` numbers of so many bits."""
    return -(-width * bits // 8)


def _rotation(width: int) -> Floats:
    """A random orthogonal matrix, (E, E), drawn with a fixed seed."""
    drawn_EE = np.random.default_rng(2).standard_normal((width, width))
    return np.linalg.qr(drawn_EE)[0].astype(np.float32)


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, NUMBERS_AT_ONCE // max(1, columns))
    return (slice(start, start + step) for start in range(0, rows, step))


def nearest_rows(vectors_NE: Floats, centroids_KE: Floats) -> NDArray[np.int32]:
    """The centroid with the largest product with each vector, the first of those that are equal.

    The native library rounds both factors to 8 bits, so that of two centroids that are about as near it may
    take the other.
    """
    nearest_N = np.empty(len(vectors_NE), np.int32)
    if library_reason("float32") is None and len(centroids_KE):
        vectors_NE, centroids_KE = np.ascontiguousarray(vectors_NE), np.ascontiguousarray(centroids_KE)
        nearest = interface.Nearest(vectors=vectors_NE.ctypes.data, table=centroids_KE.ctypes.data)
        nearest.nearest, nearest.threads = nearest_N.ctypes.data, thread_count()
        nearest.count, (nearest.rows, nearest.width) = len(vectors_NE), centroids_KE.shape
        call("native_nearest", nearest)
        return nearest_N
    for part in _parts(len(vectors_NE), len(centroids_KE)):
        nearest_N[part] = (vectors_NE[part] @ centroids_KE.T).argmax(axis=1)
    return nearest_N


def _centroids(vectors_NE: Floats, count: int) -> NDArray[np.float16]:
    """Lloyd's algorithm with centroids of length 1; one that has no vector stays where it was."""
    if not len(vectors_NE):
        return np.zeros((count, vectors_NE.shape[1]), np.float16)
    starts = np.random.default_rng(1).choice(len(vectors_NE), count, replace=False)
    centroids_KE = vectors_NE[starts].copy()
    for _ in range(ITERATIONS):
        nearest_N = nearest_rows(vectors_NE, centroids_KE)
        order = np.argsort(nearest_N, kind="stable")
        used, firsts = np.unique(nearest_N[order], return_index=True)
        sums = np.add.reduceat(vectors_NE[order], firsts, axis=0)
        lengths = np.sqrt(np.einsum("KE,KE->K", sums, sums))
        filled = lengths > 0
        centroids_KE[used[filled]] = sums[filled] / lengths[filled, None]
    return centroids_KE.astype(np.float16)


def pooled(vectors: TokenVectors, factor: int) -> TokenVectors:
    """One vector for each cluster of a text's vectors, ``(N - 1) // factor + 2`` of them at most.

    This is token pooling (Clavié, Chaffin & Adams 2024). Clusters are those of Ward's hierarchy of vectors of
    length 1, where squared distances are ``2 - 2 * cosine``. The first vector, that of [CLS] or a marker,
    stays alone, as published. A cluster's vector is the mean of its vectors divided by its length, which the
    paper does not do. It has the id and the characters of the token whose vector is nearest to the mean, and
    clusters stand in the order of these tokens.

    Args:
        vectors: of length 1.
        factor: how many tokens share a vector on average; 1 changes nothing.

    Raises:
        MissingExtra: scipy is not installed.
    """
    count = len(vectors) - 1
    if factor == 1 or count < 2:
        return vectors
    hierarchy = importlib.import_module("scipy.cluster.hierarchy")
    rest_NE = vectors.vectors_NE[1:]
    tree = hierarchy.linkage(rest_NE, "ward")
    cluster_N = hierarchy.fcluster(tree, count // factor + 1, "maxclust") - 1
    sums_CE = np.zeros((cluster_N.max() + 1, rest_NE.shape[1]), np.float32)
    np.add.at(sums_CE, cluster_N, rest_NE)
    lengths_C = np.sqrt(np.einsum("CE,CE->C", sums_CE, sums_CE))
    means_CE = sums_CE / np.maximum(lengths_C, 1e-12)[:, None]
    nearness_N = np.einsum("NE,NE->N", rest_NE, means_CE[cluster_N])
    order = np.lexsort((np.arange(count), -nearness_N, cluster_N))
    nearest_C = order[np.flatnonzero(np.diff(cluster_N[order], prepend=-1))]
    places = np.sort(nearest_C)
    rows = np.concatenate(([0], places + 1))
    return TokenVectors(
        np.concatenate((vectors.vectors_NE[:1], means_CE[cluster_N[places]])),
        vectors.ids_N[rows],
        vectors.spans_N2[rows],
        vectors.truncated_tokens,
    )
