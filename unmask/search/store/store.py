"""Make, open, verify and recover an index's folder."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from unmask.base.arguments import check_choice
from unmask.base.files import read_regular
from unmask.errors import CorruptIndex, InvalidRequest, OutputError
from unmask.search.store.blocks import digest
from unmask.search.store.disk import lock_file, make_folder, remove_file, rename_file, sync_folder
from unmask.search.store.generation import Check, Generation, open_current, open_file, open_segment
from unmask.search.store.manifest import (
    CURRENT,
    GENERATIONS,
    SEGMENTS,
    WAY_OUT,
    Manifest,
    Pointer,
    StoredSegment,
    parse_manifest,
    read_manifest,
    read_pointer,
    segment_paths,
    stored_files,
)
from unmask.search.store.writer import locked, making_lock, publish


class Store:
    """An index's folder. What changes it goes through `writing`."""

    @staticmethod
    def create(path: Path, settings: Mapping[str, Any]) -> Generation:
        """A new index without segments, as generation 1; the folder appears complete or not at all.

        Args:
            path: a folder that does not exist, or an empty one.
            settings: any values in JSON's types.

        Raises:
            OutputError: the folder has something in it, or the disk is full, read-only or failing.
            InvalidRequest: the settings are not JSON.
        """
        manifest = Manifest(1, None, dict(settings), (), ())
        content = manifest.sealed()
        if path.exists() and not (path.is_dir() and not os.listdir(path)):
            raise OutputError(f"{path} exists already; name a folder that does not, or an empty one")
        # A fixed temporary name, so that the next process removes what a killed one left.
        made = path.with_name(f".{path.name}.new")
        if not made.exists():
            make_folder(made)
        refusal = f"another process is making {path}; wait until it has finished"
        with lock_file(making_lock(path), refusal, temporary=True):
            try:
                for folder in (GENERATIONS, SEGMENTS):
                    shutil.rmtree(made / folder, ignore_errors=True)
                    make_folder(made / folder)
                remove_file(made / CURRENT)
                publish(made, manifest, content)
                rename_file(made, path)
                sync_folder(path.parent)
            except OutputError:
                shutil.rmtree(made, ignore_errors=True)
                raise
        return open_current(path, "full")

    @staticmethod
    def open(path: Path, *, check: Check = "full") -> Generation:
        """The current generation of an index. Readers need no lock, and no writer waits for them.

        Args:
            path: the folder of the index.
            check: ``"full"`` reads every byte of every array and compares it with its checksum, which takes
                about a second per GB on one core. ``"quick"`` does so with the manifest, the checksums
                themselves and segments of up to 1 MB, and compares only the size of larger segments, which
                takes about a millisecond per segment.

        Raises:
            InvalidRequest: there is no index.
            CorruptIndex: a file of it is damaged or missing; the message names it.
        """
        check_choice("check", check, ("full", "quick"))
        return open_current(path, check)

    @staticmethod
    def verify(path: Path) -> tuple[str, ...]:
        """Every damage to the current generation and the one before, a sentence each; empty if there is none.

        Compares every byte with its CRC-32 and each file with its SHA-256, which takes about three seconds
        per GB on one core. What a killed writer left is no damage.

        Raises:
            InvalidRequest: there is no index.
        """
        return damages(path)

    @staticmethod
    def recover(path: Path) -> Generation:
        """Go back to the newest generation of which every byte is as it was written.

        It becomes the current one under a new number; if the current one is whole, nothing changes. Without
        a readable ``CURRENT`` it may be one whose commit was interrupted just before its end. Files of
        damaged generations stay until something is written to the index.

        Raises:
            CorruptIndex: no generation is whole.
            InvalidRequest: there is no index.
            OutputError: another process is writing, or the disk is full, read-only or failing.
        """
        with suppress(CorruptIndex):
            read_pointer(path)
        with locked(path):
            found = newest_whole(path)
            if found is None:
                raise CorruptIndex(
                    f"no generation of {path} is whole; restore the index from a copy or build it again"
                )
            manifest, is_current = found
            if is_current:
                return open_current(path, "quick")
            again = Manifest(next_number(path), None, manifest.settings, manifest.segments, manifest.deleted)
            return publish(path, again, again.sealed())


def damages(path: Path) -> tuple[str, ...]:
    """Every damage to the current generation and the one before, a sentence each.

    Raises:
        InvalidRequest: there is no index.
    """
    while True:
        try:
            pointer = read_pointer(path)
            found = tuple(_damages(path, pointer))
            # A commit in the meantime may have removed what was being verified.
            if not found or read_pointer(path) == pointer:
                return found
        except CorruptIndex as error:
            return (str(error),)


def _damages(path: Path, pointer: Pointer) -> Iterator[str]:
    segments: dict[str, StoredSegment] = {}
    wanted: Pointer | None = pointer
    for _ in ("current", "the one before"):
        if wanted is not None:
            try:
                manifest = read_manifest(path, wanted)
                segments |= {stored.name: stored for stored in manifest.segments}
                wanted = manifest.previous
            except CorruptIndex as error:
                yield str(error)
                break
    yield from segment_damages(path, segments.values())


def segment_damages(path: Path, segments: Iterable[StoredSegment]) -> Iterator[str]:
    """The damages to segments, a sentence each."""
    for stored in segments:
        arrays, _ = segment_paths(path, stored.name)
        try:
            open_segment(path, stored, np.empty(0, np.int64), "full")
            with open_file(arrays) as file:
                if digest(arrays, file) != stored.sha256:
                    yield f"{arrays} is damaged: its SHA-256 differs from the manifest's; {WAY_OUT}"
        except CorruptIndex as error:
            yield str(error)


def newest_whole(path: Path) -> tuple[Manifest, bool] | None:
    """The newest generation without damage, and whether it is the current one; None if there is none.

    Raises:
        InvalidRequest: there is no index.
    """
    try:
        current: Pointer | None = read_pointer(path)
    except CorruptIndex:
        current = None
    for number, file in sorted(stored_files(path), reverse=True):
        if file.suffix != ".json" or (current is not None and number > current.number):
            continue
        is_current = current is not None and number == current.number
        try:
            if current is not None and is_current:
                manifest = read_manifest(path, current)
            else:
                manifest = parse_manifest(file, read_regular(file, CorruptIndex), number)
        except (CorruptIndex, InvalidRequest):
            continue
        if not any(segment_damages(path, manifest.segments)):
            return manifest, is_current
    return None


def next_number(path: Path) -> int:
    """A number for a generation that no file in the folder has."""
    try:
        current = read_pointer(path).number
    except CorruptIndex:
        current = 0
    return max((current, *(number for number, _ in stored_files(path)))) + 1
