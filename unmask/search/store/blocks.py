"""Files in blocks, each with a CRC-32: written in pieces, verified block by block."""

import hashlib
import os
import zlib
from array import array
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.base.system import read_at
from unmask.errors import CorruptIndex
from unmask.search.store.disk import create_file, sync_file, write_content

BLOCK = 64 * 1024
"""Bytes under one checksum."""

AT_ONCE = 16 * BLOCK
"""Bytes written or read in one call."""

Checksums = NDArray[np.uint32]


class BlockWriter:
    """A new file, written in pieces; holds at most `AT_ONCE` bytes of it.

    Args:
        path: the file, which does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self._path = path
        self._file = create_file(path)
        self._sha256 = hashlib.sha256()
        self._checksums = array("I")
        self._waiting = bytearray()

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        left = memoryview(content)
        while left:
            taken = left[: AT_ONCE - len(self._waiting)]
            self._waiting += taken
            self.bytes += len(taken)
            left = left[len(taken) :]
            if len(self._waiting) == AT_ONCE:
                self._flush()

    def align(self, to: int) -> None:
        """Append zeros until the size is a multiple of ``to``."""
        self.write(bytes(-self.bytes % to))

    def finish(self) -> tuple[str, bytes]:
        """Flush everything to the disk; the file's SHA-256, and the content of its file of checksums."""
        self._flush()
        sync_file(self._path, self._file)
        self.close()
        return self._sha256.hexdigest(), np.array(self._checksums, "<u4").tobytes()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def _flush(self) -> None:
        with memoryview(self._waiting) as waiting:
            for start in range(0, len(waiting), BLOCK):
                self._checksums.append(zlib.crc32(waiting[start : start + BLOCK]))
            self._sha256.update(waiting)
            write_content(self._path, self._file, waiting)
        self._waiting.clear()


def checksum_bytes(size: int) -> int:
    """The size of the file of checksums of a file of ``size`` bytes."""
    return -(-size // BLOCK) * 4


def read_pieces(path: Path, file: FileIO, start: int, stop: int) -> Iterator[memoryview]:
    """The bytes of an opened file in pieces of up to `AT_ONCE`; ends early where the file does.

    Raises:
        CorruptIndex: the disk cannot read them.
    """
    buffer = memoryview(bytearray(AT_ONCE))
    while start < stop:
        try:
            # Read and not mapped: a disk error in a memory map would end the process.
            count = read_at(file, buffer[: stop - start], start)
        except OSError as error:
            raise CorruptIndex(f"cannot read {path}: {error.strerror or error}") from None
        if not count:
            return
        yield buffer[:count]
        start += count


def damaged_blocks(path: Path, file: FileIO, checksums: Checksums, start: int, stop: int) -> list[int]:
    """Numbers of the blocks with the bytes from ``start`` to ``stop`` that differ from their checksums."""
    size = os.fstat(file.fileno()).st_size
    first, last = start // BLOCK, -(-min(stop, size) // BLOCK)
    found = np.zeros(max(0, last - first), np.uint32)
    place = first * BLOCK
    for piece in read_pieces(path, file, place, min(last * BLOCK, size)):
        left = piece
        while left:
            # A read may end anywhere, so a checksum is continued with the next piece.
            part = left[: BLOCK - place % BLOCK]
            block = place // BLOCK - first
            found[block] = zlib.crc32(part, int(found[block]))
            place += len(part)
            left = left[len(part) :]
    return [first + int(block) for block in np.flatnonzero(found != checksums[first:last])]


def digest(path: Path, file: FileIO) -> str:
    """The SHA-256 of a whole file."""
    sha256 = hashlib.sha256()
    for piece in read_pieces(path, file, 0, os.fstat(file.fileno()).st_size):
        sha256.update(piece)
    return sha256.hexdigest()
