"""Find every damage to an index, and the newest generation without any."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from unmask.base.files import read_regular
from unmask.errors import CorruptIndex, InvalidRequest
from unmask.search.store.blocks import digest
from unmask.search.store.generation import open_file, open_segment
from unmask.search.store.manifest import (
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
