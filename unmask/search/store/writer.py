"""Write new generations: segments go to disk unseen, and one rename makes them current."""

import hashlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import CorruptIndex, InvalidRequest, OutputError, quoted
from unmask.search.store.arrays import HEADER, Pieces, write_array
from unmask.search.store.blocks import BlockWriter
from unmask.search.store.disk import lock_file, remove_file, rename_file, sync_folder, write_file
from unmask.search.store.generation import Generation, open_current, open_generation, open_segment
from unmask.search.store.manifest import (
    ARRAY_NAME,
    CURRENT,
    GENERATIONS,
    LOCK,
    SEGMENTS,
    Manifest,
    Pointer,
    StoredSegment,
    manifest_path,
    read_manifest,
    read_pointer,
    seal,
    sealed_pointer,
    segment_paths,
    stored_files,
)


@contextmanager
def writing(path: Path) -> Iterator["Writer"]:
    """Write to the index at ``path``, as its only writer; readers go on reading what they opened.

    Files that a killed writer left are removed first, and at the end so are segments that no commit used.
    The cost of opening: as ``Store.open(check="quick")``; an array of an older segment is verified when it
    is first used, so that a damaged one is never copied into a new segment.

    Raises:
        OutputError: another process is writing, or the disk is full, read-only or failing.
        InvalidRequest: there is no index.
        CorruptIndex: a file of it is damaged or missing.
    """
    read_pointer(path)
    with locked(path):
        writer = Writer(path, open_current(path, "quick", on_use=True))
        remove_unnamed(path)
        with suppress(OSError):  # who made the index may have been killed before
            making_lock(path).unlink()
        try:
            yield writer
        finally:
            writer.close()
            remove_unnamed(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the index.

    Raises:
        OutputError: another process is writing.
    """
    refusal = f"another process is writing to {path}; wait until it has finished"
    with lock_file(path / LOCK, refusal):
        yield


def making_lock(path: Path) -> Path:
    """What is locked while an index is made: beside it, as Windows renames no folder with an open file."""
    return path.with_name(f".{path.name}.new.lock")


class Writer:
    """What `writing` gives. After an `OutputError` it refuses everything; what was committed stays.

    Args:
        path: the folder of the index, which is locked.
        generation: its current generation.
    """

    def __init__(self, path: Path, generation: Generation) -> None:
        self._path = path
        self._generation = generation
        self._added: dict[str, StoredSegment] = {}
        self._written = 0
        self._refusal = ""

    @property
    def generation(self) -> Generation:
        """The current generation: the one that was found, and after a commit the new one."""
        return self._generation

    def add_segment(self, rows: int, arrays: Mapping[str, Pieces], facts: Mapping[str, Any]) -> str:
        """Write a segment, which no reader sees before a commit names it; its name.

        Args:
            rows: how many rows it has; arrays may have other lengths.
            arrays: 1-D or 2-D arrays of numbers or booleans, each whole or in pieces, which are written
                one after another and need not fit into memory together.
            facts: what else belongs to it, in JSON's types; it is read whenever the index is opened.

        Raises:
            InvalidRequest: a wrong name, number type or shape, or facts that are not JSON.
            OutputError: the disk is full, read-only or failing.
        """
        self._check_usable()
        if type(rows) is not int or rows < 0:
            raise InvalidRequest(f"rows is {quoted(rows)}; it must be an integer from 0")
        for name in arrays:
            if not isinstance(name, str) or not ARRAY_NAME.fullmatch(name):
                raise InvalidRequest(
                    f"an array is called {quoted(name)}; use a-z, 0-9, _ and / between parts"
                )
        seal(dict(facts))
        self._written += 1
        name = f"{self._generation.number + 1:06d}-{self._written:03d}"
        with self._failing():
            self._added[name] = self._write_segment(name, rows, arrays, facts)
        return name

    def commit(
        self, segments: Mapping[str, NDArray[np.int64]], settings: Mapping[str, Any] | None = None
    ) -> Generation:
        """Make a generation of these segments the current one; it is on disk when this returns.

        Everything new is read back from the disk and verified first. The generation before is kept, and
        files of older ones are removed.

        Args:
            segments: names of segments, old or added, in order, with the deleted rows of each.
            settings: new settings in JSON's types; None keeps those there are.

        Raises:
            InvalidRequest: an unknown segment, a deleted row beyond its rows, or values that are not JSON.
            OutputError: the disk is full, read-only or failing, or gave other bytes back. What was current
                before the commit still opens.
        """
        self._check_usable()
        before = self._generation
        known = {stored.name: stored for stored in before.manifest.segments} | self._added
        for name in segments:
            if name not in known:
                raise InvalidRequest(f"there is no segment called {quoted(name)}; add it before the commit")
        manifest = Manifest(
            before.number + 1,
            before.pointer,
            before.manifest.settings if settings is None else dict(settings),
            tuple(known[name] for name in segments),
            tuple(deleted_rows(known[name], rows) for name, rows in segments.items()),
        )
        content = manifest.sealed()
        with self._failing():
            self._check_alone()
            for name in segments.keys() & self._added.keys():
                self._verify(self._added[name])
            sync_folder(self._path / SEGMENTS)
            self._generation = publish(self._path, manifest, content)
        self._added = {name: stored for name, stored in self._added.items() if name not in segments}
        remove_unnamed(self._path, keep=self._added.keys())
        return self._generation

    def close(self) -> None:
        """Refuse everything from now on."""
        self._refusal = self._refusal or "this writer is closed; open the index for writing again"

    def _check_usable(self) -> None:
        if self._refusal:
            raise OutputError(self._refusal)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OutputError:
            self._refusal = "writing failed before; open the index for writing again"
            raise

    def _write_segment(
        self, name: str, rows: int, arrays: Mapping[str, Pieces], facts: Mapping[str, Any]
    ) -> StoredSegment:
        path, checksums_path = segment_paths(self._path, name)
        file = BlockWriter(path)
        try:
            file.write(HEADER)
            stored = {array: write_array(file, array, pieces) for array, pieces in arrays.items()}
            sha256, checksums = file.finish()
        finally:
            file.close()
        write_file(checksums_path, checksums)
        checksums_sha256 = hashlib.sha256(checksums).hexdigest()
        return StoredSegment(name, rows, dict(facts), stored, file.bytes, sha256, checksums_sha256)

    def _check_alone(self) -> None:
        """A lock ends when its file is removed by hand; then another process may have written."""
        with suppress(CorruptIndex):
            if read_pointer(self._path) == self._generation.pointer:
                return
        raise OutputError(f"another process has written to {self._path} in spite of its lock; open it again")

    def _verify(self, stored: StoredSegment) -> None:
        try:
            open_segment(self._path, stored, np.empty(0, np.int64), "full")
        except CorruptIndex as error:
            raise OutputError(f"the disk did not keep what was written to it: {error}") from None


def deleted_rows(segment: StoredSegment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deleted rows in ascending order, each once.

    Raises:
        InvalidRequest: the segment does not have one of them.
    """
    given = np.asarray(rows)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidRequest(f"the deleted rows of segment {segment.name} must be a list of integers")
    for row in given[(given < 0) | (given >= segment.rows)]:
        raise InvalidRequest(
            f"row {row} of segment {segment.name} cannot be deleted; it has {segment.rows} rows"
        )
    return np.unique(given.astype(np.int64))


def publish(path: Path, manifest: Manifest, content: bytes) -> Generation:
    """Write a manifest whose segments are on disk, and make it the current one.

    Args:
        path: the folder of the index.
        manifest: the new generation.
        content: its manifest's file.

    Raises:
        OutputError: the disk is full, read-only or failing, or gave other bytes back.
    """
    write_file(manifest_path(path, manifest.number), content)
    sync_folder(path / GENERATIONS)
    pointer = Pointer(manifest.number, hashlib.sha256(content).hexdigest())
    try:
        generation = open_generation(path, pointer, "quick", on_use=True)
    except CorruptIndex as error:
        raise OutputError(f"the disk did not keep what was written to it: {error}") from None
    new = path / f"{CURRENT}.new"
    remove_file(new)
    write_file(new, sealed_pointer(pointer))
    rename_file(new, path / CURRENT)
    sync_folder(path)
    return generation


def remove_unnamed(path: Path, keep: Set[str] = frozenset()) -> None:
    """Remove manifests and segments that neither the current generation nor the one before names.

    What cannot be removed stays for the next writer: it takes space and does no other harm.

    Args:
        path: the folder of the index, which is locked.
        keep: names of segments that are still wanted.
    """
    try:
        current = read_manifest(path, read_pointer(path))
    except CorruptIndex:
        return
    named = current.files(path) | {file for name in keep for file in segment_paths(path, name)}
    try:
        if current.previous is not None:
            named |= read_manifest(path, current.previous).files(path)
        newest_unknown = 0
    except CorruptIndex:
        # Which of the older files the one before names is unknown; those of an unfinished commit are newer.
        newest_unknown = current.number
    for number, file in stored_files(path):
        if number > newest_unknown and file not in named:
            with suppress(OutputError):
                remove_file(file)
