"""Manifests, the pointer to the current one, and where the files of an index are."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import read_regular
from unmask.errors import CorruptIndex, InvalidRequest, quoted

SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n"content": (.*)\}\n', re.DOTALL)
"""The whole of such a file: the SHA-256 of the content's bytes, and the content."""


def seal(content: object) -> bytes:
    """The bytes of a sealed file.

    Raises:
        InvalidRequest: the content is not JSON.
    """
    try:
        body = json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"settings or facts of an index cannot be stored: {error}; give values of JSON's types"
        ) from None
    digest = hashlib.sha256(body).hexdigest().encode()
    return b'{"sha256": "' + digest + b'",\n"content": ' + body + b"}\n"


def unseal(file: bytes) -> Any:
    """The content of a sealed file.

    Raises:
        ValueError: it is not what was written.
    """
    found = SEALED.fullmatch(file)
    if found is None or hashlib.sha256(found[2]).hexdigest().encode() != found[1]:
        raise ValueError("it does not match its checksum")
    return json.loads(found[2])


FORMAT = 1
"""The version of the layout; a later one is refused."""

CURRENT = "CURRENT"
LOCK = "lock"
GENERATIONS = "generations"
SEGMENTS = "segments"

ARRAY_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")
SEGMENT_NAME = re.compile(r"\d{6,}-\d{3,}")
OUR_FILE = re.compile(r"(\d{6,})(\.json|-\d{3,}\.(arrays|crc32))")
"""Names of manifests and segments, with the number of the generation that was being made."""

DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8")
"""Types of stored arrays, as numpy writes them."""

WAY_OUT = "restore the index from a copy, or go back to its newest whole generation with Store.recover"


class Pointer(NamedTuple):
    """Which manifest: its generation's number and the SHA-256 of the file."""

    number: int
    sha256: str


@dataclass(frozen=True)
class StoredArray:
    """Where one array is in its segment's file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize

    def check(self, segment_bytes: int) -> None:
        """Raise ValueError unless this array can be in a file of that size."""
        sizes = (*self.shape, self.offset)
        plain = all(type(size) is int and size >= 0 for size in sizes) and 1 <= len(self.shape) <= 2
        if self.dtype not in DTYPES or not plain or self.offset + self.bytes > segment_bytes:
            raise ValueError(f"an array of type {self.dtype} and shape {self.shape} at {self.offset}")


@dataclass(frozen=True)
class StoredSegment:
    """One segment as a manifest describes it."""

    name: str
    rows: int
    facts: Mapping[str, Any]
    arrays: Mapping[str, StoredArray]
    bytes: int
    """The size of the file of arrays."""
    sha256: str
    """Of the file of arrays."""
    checksums_sha256: str
    """Of the file of checksums."""

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "StoredSegment":
        """A segment from a manifest; raises ValueError, TypeError or KeyError if it is not one."""
        arrays = {
            name: StoredArray(one["dtype"], tuple(one["shape"]), one["offset"])
            for name, one in values.pop("arrays").items()
        }
        segment = cls(arrays=arrays, **values)
        if not SEGMENT_NAME.fullmatch(segment.name):
            raise ValueError(f"a segment called {segment.name!r}")
        for array in arrays.values():
            array.check(segment.bytes)
        return segment


@dataclass(frozen=True)
class Manifest:
    """What one generation consists of."""

    number: int
    previous: Pointer | None
    """The generation before it, which is kept too."""
    settings: Mapping[str, Any]
    segments: tuple[StoredSegment, ...]
    deleted: tuple[NDArray[np.int64], ...]
    """The deleted rows of each segment, in ascending order."""

    def sealed(self) -> bytes:
        """The content of its file.

        Raises:
            InvalidRequest: settings or facts are not JSON.
        """
        values = asdict(self) | {"format": FORMAT, "deleted": [rows.tolist() for rows in self.deleted]}
        return seal(values)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Manifest":
        """A manifest from its file's content; raises ValueError, TypeError or KeyError if it is not one."""
        segments = tuple(StoredSegment.parse(one) for one in values["segments"])
        deleted = tuple(np.array(rows, np.int64) for rows in values["deleted"])
        for segment, rows in zip(segments, deleted, strict=True):
            if rows.ndim != 1 or np.any(np.diff(rows, prepend=-1, append=segment.rows) <= 0):
                raise ValueError(f"the deleted rows of {segment.name}")
            rows.flags.writeable = False
        previous = values["previous"]
        return cls(
            int(values["number"]),
            None if previous is None else Pointer(*previous),
            dict(values["settings"]),
            segments,
            deleted,
        )

    def files(self, path: Path) -> set[Path]:
        """Its own file and those of its segments."""
        return {
            manifest_path(path, self.number),
            *(file for segment in self.segments for file in segment_paths(path, segment.name)),
        }


def manifest_path(path: Path, number: int) -> Path:
    """The manifest of a generation."""
    return path / GENERATIONS / f"{number:06d}.json"


def segment_paths(path: Path, name: str) -> tuple[Path, Path]:
    """The arrays of a segment, and their checksums."""
    return path / SEGMENTS / f"{name}.arrays", path / SEGMENTS / f"{name}.crc32"


def stored_files(path: Path) -> Iterator[tuple[int, Path]]:
    """Manifests and segments in the folder, named by a manifest or not, with their generation's number."""
    for folder in (path / GENERATIONS, path / SEGMENTS):
        for file in sorted(folder.glob("*")):
            if match := OUR_FILE.fullmatch(file.name):
                yield int(match[1]), file


def read_pointer(path: Path) -> Pointer:
    """Which generation of the index at ``path`` is the current one.

    Raises:
        InvalidRequest: there is no index.
        CorruptIndex: ``CURRENT`` is damaged, or missing beside the rest of an index.
    """
    file = path / CURRENT
    if not file.is_file():
        if any(stored_files(path)):
            raise CorruptIndex(f"{file} is missing; {WAY_OUT}")
        raise InvalidRequest(f"{path} is not an index; name the folder of one, or make one there first")
    try:
        values = unseal(read_regular(file, CorruptIndex))
        return Pointer(int(values["number"]), str(values["sha256"]))
    except (ValueError, TypeError, KeyError):
        raise CorruptIndex(f"{file} is damaged: it does not match its checksum; {WAY_OUT}") from None


def sealed_pointer(pointer: Pointer) -> bytes:
    """The content of ``CURRENT``."""
    return seal(pointer._asdict())


def read_manifest(path: Path, pointer: Pointer) -> Manifest:
    """The manifest that ``pointer`` names.

    Raises:
        CorruptIndex: it is missing, damaged, or another generation's.
        InvalidRequest: a later version of this package wrote it.
    """
    file = manifest_path(path, pointer.number)
    content = read_regular(file, CorruptIndex)
    if hashlib.sha256(content).hexdigest() != pointer.sha256:
        raise CorruptIndex(f"{file} is damaged, or of another generation: its SHA-256 differs; {WAY_OUT}")
    return parse_manifest(file, content, pointer.number)


def parse_manifest(file: Path, content: bytes, number: int) -> Manifest:
    """A manifest from the bytes of its file, which must match their own checksum.

    Raises:
        CorruptIndex: they do not, or it has another number.
        InvalidRequest: a later version of this package wrote it.
    """
    try:
        values = unseal(content)
        if values["format"] != FORMAT:
            raise InvalidRequest(
                f"{file} has format {quoted(values['format'])} and this version of unmask reads {FORMAT}; "
                "install the version that wrote it, or a later one"
            )
        manifest = Manifest.parse(values)
        if manifest.number != number:
            raise ValueError(f"its number is {manifest.number}")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptIndex(f"{file} is damaged: {error}; {WAY_OUT}") from None
