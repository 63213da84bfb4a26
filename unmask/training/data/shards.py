"""Tokenized chunks on disk: ids of two or four bytes in memory-mapped files, and a manifest with
checksums."""

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import read_bytes
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.chunking import NOTHING

MANIFEST = "manifest.json"
VERSION = 2
"""Version of the format and of the chunking rules; shards of other versions are created again."""


LENGTHS, DOCUMENTS = "lengths.npy", "documents.npy"


class Ids(Protocol):
    """The ids in each file of a set."""

    def of_file(self, number: int) -> NDArray[np.generic]:
        """All ids of a file, one after another."""

    def want(self, files: Sequence[int]) -> None:
        """Announce the files that will be read next."""


@dataclass(frozen=True, eq=False)
class MappedIds:
    """Ids in memory-mapped files of this machine."""

    files: tuple[NDArray[np.generic], ...]

    def of_file(self, number: int) -> NDArray[np.generic]:
        """All ids of a file, one after another."""
        return self.files[number]

    def want(self, files: Sequence[int]) -> None:
        """Nothing has to be done."""


def id_files(manifest: Mapping[str, Any]) -> list[str]:
    """The names of the files of ids, in order."""
    return [name for name, entry in manifest["files"].items() if "pieces" in entry]


def fingerprint_of(tokenizer: Tokenizer) -> str:
    """SHA-256 of everything that determines the ids of a text."""
    return hashlib.sha256(tokenizer.engine.to_str().encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class ShardSet:
    """The chunks of one source. Created by `ShardSet.open`."""

    folder: Path | str
    """A path, or the URL of a folder in an object store."""
    manifest: Mapping[str, Any]
    lengths: NDArray[np.int64]
    """Tokens of each chunk without special tokens, shape (N,)."""
    documents: NDArray[np.int64]
    """The document of each chunk, from 0, non-decreasing, shape (N,)."""
    file_starts: NDArray[np.int64]
    """The first chunk of each file of ids, followed by N, shape (files + 1,)."""
    _ids: Ids
    _starts: NDArray[np.int64]
    """Start of each chunk in its file."""

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True) -> "ShardSet":
        """Memory-map the files of a folder written by `write_shards`.

        Args:
            folder: the finished folder.
            verify: whether to read every byte once and compare checksums with the manifest.

        Raises:
            InvalidRequest: the folder holds no shards, or a file is missing or damaged.
        """
        manifest = _manifest(folder)
        for name, entry in manifest["files"].items():
            _check_file(folder / name, entry, verify=verify)
        return cls.of_tables(
            folder,
            manifest,
            np.load(folder / LENGTHS),
            np.load(folder / DOCUMENTS),
            MappedIds(tuple(_mapped(folder / name, manifest["dtype"]) for name in id_files(manifest))),
        )

    @classmethod
    def of_tables(
        cls,
        folder: Path | str,
        manifest: Mapping[str, Any],
        lengths: NDArray[np.uint32],
        documents: NDArray[np.int64],
        ids: Ids,
    ) -> "ShardSet":
        """A set of the contents of its files."""
        lengths_N = lengths.astype(np.int64)
        counts = [manifest["files"][name]["pieces"] for name in id_files(manifest)]
        first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        starts = np.cumsum(lengths_N) - lengths_N
        if counts:
            starts -= np.repeat(starts[first[:-1]], counts)
        return cls(folder, manifest, lengths_N, documents, first, ids, starts)

    @property
    def name(self) -> str:
        """The source's name."""
        return str(self.manifest["source"]["name"])

    @property
    def digest(self) -> str:
        """SHA-256 over the checksums of its files: equal if all chunks are equal."""
        sums = [[name, entry["sha256"]] for name, entry in sorted(self.manifest["files"].items())]
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()

    @property
    def count(self) -> int:
        """N, the number of chunks."""
        return len(self.lengths)

    @property
    def token_count(self) -> int:
        """Tokens of all chunks, without special tokens."""
        return int(self.manifest["counts"]["tokens"])

    @property
    def document_count(self) -> int:
        """Documents that were read; some may have no chunk."""
        return int(self.manifest["counts"]["documents"])

    @property
    def inputs(self) -> dict[str, str]:
        """SHA-256 of each input file, by name; empty if not recorded."""
        return {entry["name"]: entry["sha256"] for entry in self.manifest.get("inputs", [])}

    @property
    def null_texts(self) -> int:
        """Records that were skipped because their text is null."""
        return int(self.manifest.get("skipped", {}).get("null_texts", 0))

    @property
    def vocabulary_size(self) -> int:
        """The tokenizer's vocabulary size; every id is below it."""
        return int(self.manifest["vocabulary_size"])

    def largest_files(self, count: int | None = None) -> list[int]:
        """Bytes of the ``count`` largest files of ids; None for all of them."""
        sizes = (int(self.manifest["files"][name]["bytes"]) for name in id_files(self.manifest))
        return sorted(sizes, reverse=True)[:count]

    def want(self, files: Sequence[int]) -> None:
        """Announce the files that will be read next, in this order; files of an object store are
        downloaded."""
        self._ids.want(files)

    def ids(self, chunk: int) -> NDArray[np.int64]:
        """The ids of a chunk, without special tokens."""
        return self.read(np.array([chunk]))[0]

    def read(self, chunks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The ids of several chunks, without special tokens; faster than one by one."""
        if len(chunks) and not 0 <= chunks.min() <= chunks.max() < self.count:
            raise InvalidRequest(
                f"chunks {chunks.min()} to {chunks.max()} requested of {self.folder}, which has {self.count}"
            )
        files = (np.searchsorted(self.file_starts, chunks, side="right") - 1).tolist()
        starts, lengths = self._starts[chunks], self.lengths[chunks]
        places = zip(files, starts.tolist(), (starts + lengths).tolist(), strict=True)
        ids_of = {file: self._ids.of_file(file) for file in set(files)}
        ids = np.concatenate([NOTHING, *(ids_of[file][start:stop] for file, start, stop in places)])
        ends = np.cumsum(lengths)
        return [ids[start:stop] for start, stop in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def _manifest(folder: Path) -> dict[str, Any]:
    content = read_bytes(folder / MANIFEST, lambda why: InvalidRequest(f"{why}, so {folder} holds no shards"))
    return parsed_manifest(content, folder)


def parsed_manifest(content: bytes, folder: Path | str) -> dict[str, Any]:
    """The manifest of a folder.

    Raises:
        InvalidRequest: it is damaged, or of another version of the format.
    """
    try:
        manifest = json.loads(content)
        version = manifest["version"]
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(
            f"{MANIFEST} of {folder} is damaged; remove {folder} so that it is created again"
        ) from None
    if version != VERSION:
        raise InvalidRequest(
            f"{folder} has version {version} of the format, and this program reads {VERSION}; remove it "
            "so that it is created again"
        )
    return dict(manifest)


def _check_file(path: Path, entry: Mapping[str, Any], *, verify: bool) -> None:
    try:
        size = path.stat().st_size
        digest = hashlib.sha256()
        if verify:
            with path.open("rb") as stream:
                while block := stream.read(2**20):
                    digest.update(block)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror or error}; remove {path.parent} so that it is created again"
        ) from None
    if size != entry["bytes"] or (verify and digest.hexdigest() != entry["sha256"]):
        raise InvalidRequest(
            f"{path} is not what was written ({size} bytes, {entry['bytes']} expected, or another checksum); "
            f"remove {path.parent} so that it is created again"
        )


def _mapped(path: Path, dtype: str) -> NDArray[np.generic]:
    with path.open("rb") as stream:
        return mapped(stream, dtype)


def mapped(stream: BinaryIO, dtype: str) -> NDArray[np.generic]:
    """An open file as an array, which stays valid when the file is closed or removed."""
    return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.dtype(dtype))
