"""An opened generation: the arrays of its segments as read-only memory maps."""

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import check_regular, read_regular
from unmask.errors import CorruptIndex
from unmask.search.store.blocks import AT_ONCE, BLOCK, Checksums, checksum_bytes, damaged_blocks
from unmask.search.store.manifest import (
    WAY_OUT,
    Manifest,
    Pointer,
    StoredSegment,
    read_manifest,
    read_pointer,
    segment_paths,
)

Check = Literal["full", "quick"]
"""How much `Store.open` verifies: every byte, or all but the contents of large files."""


class Arrays(Mapping[str, NDArray[Any]]):
    """The arrays of a segment by name, each made when it is first asked for."""

    def __init__(self, stored: StoredSegment, content: mmap.mmap, verifier: "Verifier | None") -> None:
        self._stored = stored
        self._content = content
        self._verifier = verifier
        self._made: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            stored = self._stored.arrays[name]
            if self._verifier is not None:
                self._verifier.verify(stored.offset, stored.offset + stored.bytes)
            flat = np.frombuffer(
                self._content, stored.dtype, stored.bytes // np.dtype(stored.dtype).itemsize, stored.offset
            )
            self._made[name] = flat.reshape(stored.shape)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.arrays)

    def __len__(self) -> int:
        return len(self._stored.arrays)


class Segment:
    """Rows that were written together and never change; only which of them are deleted does.

    Args:
        stored: what the manifest says of it.
        deleted: its deleted rows in this generation.
        content: its file of arrays.
        verifier: verifies each array before its first use; None if that was done, or is not wanted.
    """

    def __init__(
        self,
        stored: StoredSegment,
        deleted: NDArray[np.int64],
        content: mmap.mmap,
        verifier: "Verifier | None" = None,
    ) -> None:
        self.name: str = stored.name
        self.rows: int = stored.rows
        self.facts: Mapping[str, Any] = MappingProxyType(dict(stored.facts))
        self.deleted: NDArray[np.int64] = deleted
        """Rows that do not count any more, in ascending order."""
        self.arrays: Mapping[str, NDArray[Any]] = Arrays(stored, content, verifier)
        """Read-only, mapped from disk: only the parts that are used take memory."""
        self.sha256: str = stored.sha256
        """Of all arrays; a segment of the same name and SHA-256 has the same content."""


class Generation:
    """One committed state of an index. It stays as it is while a writer commits others.

    Args:
        path: the folder of the index.
        pointer: its number and its manifest's SHA-256.
        manifest: what it consists of.
        segments: its segments, opened.
    """

    def __init__(
        self, path: Path, pointer: Pointer, manifest: Manifest, segments: tuple[Segment, ...]
    ) -> None:
        self.path = path
        self.number: int = manifest.number
        self.sha256: str = pointer.sha256
        """Of its manifest, which contains those of all its files."""
        self.settings: Mapping[str, Any] = MappingProxyType(dict(manifest.settings))
        self.segments = segments
        self.manifest = manifest

    @property
    def pointer(self) -> Pointer:
        """What ``CURRENT`` contains while this is the current generation."""
        return Pointer(self.number, self.sha256)


class Verifier:
    """Compares parts of a segment's file with their checksums.

    Args:
        file: the file of arrays.
        checksums: one per block.
    """

    def __init__(self, file: Path, checksums: Checksums) -> None:
        self._file = file
        self._checksums = checksums

    def verify(self, start: int, stop: int) -> None:
        """Raise `CorruptIndex` unless the blocks with these bytes are as they were written."""
        with open_file(self._file) as file:
            self.verify_opened(file, start, stop)

    def verify_opened(self, file: FileIO, start: int, stop: int) -> None:
        """The same with the file opened."""
        damaged = damaged_blocks(self._file, file, self._checksums, start, stop)
        if damaged:
            raise CorruptIndex(
                f"{self._file} is damaged: {len(damaged):,} of its {len(self._checksums):,} blocks differ "
                f"from their checksums, the first at byte {damaged[0] * BLOCK:,}; {WAY_OUT}"
            )


def open_current(path: Path, check: Check, *, on_use: bool = False) -> Generation:
    """The current generation; ``on_use`` verifies each array before its first use.

    Raises:
        InvalidRequest: there is no index.
        CorruptIndex: a file of it is damaged or missing.
    """
    while True:
        pointer = read_pointer(path)
        try:
            return open_generation(path, pointer, check, on_use=on_use)
        except CorruptIndex:
            # While this generation was being opened, a writer may have committed two others and removed it.
            if read_pointer(path) == pointer:
                raise


def open_generation(path: Path, pointer: Pointer, check: Check, *, on_use: bool = False) -> Generation:
    """The generation that ``pointer`` names; its files are opened here, so their names are not used later.

    Raises:
        CorruptIndex: a file of it is damaged or missing.
    """
    manifest = read_manifest(path, pointer)
    segments = tuple(
        open_segment(path, stored, deleted, check, on_use=on_use)
        for stored, deleted in zip(manifest.segments, manifest.deleted, strict=True)
    )
    return Generation(path, pointer, manifest, segments)


def open_segment(
    path: Path, stored: StoredSegment, deleted: NDArray[np.int64], check: Check, *, on_use: bool = False
) -> Segment:
    """One segment, verified as ``check`` says; a file of up to `AT_ONCE` bytes always is.

    Raises:
        CorruptIndex: a file of it is damaged or missing.
    """
    file_path, _ = segment_paths(path, stored.name)
    verifier = Verifier(file_path, read_checksums(path, stored))
    with open_file(file_path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != stored.bytes:
            raise CorruptIndex(
                f"{file_path} has {size:,} bytes and had {stored.bytes:,} when it was written; {WAY_OUT}"
            )
        verified = check == "full" or size <= AT_ONCE
        if verified:
            verifier.verify_opened(file, 0, size)
        content = mapped(file_path, file)
    return Segment(stored, deleted, content, verifier if on_use and not verified else None)


def mapped(path: Path, file: FileIO) -> mmap.mmap:
    """A read-only memory map of an opened file."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CorruptIndex(f"cannot read {path}: {error.strerror or error}") from None


def read_checksums(path: Path, stored: StoredSegment) -> Checksums:
    """The checksums of a segment's blocks.

    Raises:
        CorruptIndex: their file is damaged or missing.
    """
    _, file = segment_paths(path, stored.name)
    content = read_regular(file, CorruptIndex)
    known = hashlib.sha256(content).hexdigest() == stored.checksums_sha256
    if not known or len(content) != checksum_bytes(stored.bytes):
        raise CorruptIndex(f"{file} is damaged: its SHA-256 differs from the manifest's; {WAY_OUT}")
    return np.frombuffer(content, "<u4")


def open_file(path: Path) -> FileIO:
    """A file to read.

    Raises:
        CorruptIndex: it is missing or cannot be read.
    """
    check_regular(path, CorruptIndex)
    try:
        return FileIO(path)
    except OSError as error:
        raise CorruptIndex(f"cannot read {path}: {error.strerror or error}") from None
