"""Tokenized chunks on disk: ids of two or four bytes in memory-mapped files, and a manifest with
checksums."""

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.files import read_bytes
from unmask.learn.data.chunking import NOTHING
from unmask.text import Tokenizer

MANIFEST = "manifest.json"
VERSION = 2
"""Version of the format and of the chunking rules; shards of other versions are created again."""


def fingerprint_of(tokenizer: Tokenizer) -> str:
    """SHA-256 of everything that determines the ids of a text."""
    return hashlib.sha256(tokenizer.engine.to_str().encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class ShardSet:
    """The chunks of one source. Created by `ShardSet.open`."""

    folder: Path
    manifest: Mapping[str, Any]
    lengths: NDArray[np.int64]
    """Tokens of each chunk without special tokens, shape (N,)."""
    documents: NDArray[np.int64]
    """The document of each chunk, from 0, non-decreasing, shape (N,)."""
    _ids: tuple[NDArray[np.generic], ...]
    _first: NDArray[np.int64]
    """The first chunk of each file of ids, followed by N."""
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
        lengths = np.load(folder / "lengths.npy").astype(np.int64)
        shards = [entry | {"name": name} for name, entry in manifest["files"].items() if "pieces" in entry]
        first = np.concatenate(([0], np.cumsum([entry["pieces"] for entry in shards]))).astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        if shards:
            starts -= np.repeat(starts[first[:-1]], np.diff(first))
        return cls(
            folder=folder,
            manifest=manifest,
            lengths=lengths,
            documents=np.load(folder / "documents.npy"),
            _ids=tuple(_mapped(folder / entry["name"], manifest["dtype"]) for entry in shards),
            _first=first,
            _starts=starts,
        )

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

    def ids(self, chunk: int) -> NDArray[np.int64]:
        """The ids of a chunk, without special tokens."""
        return self.read(np.array([chunk]))[0]

    def read(self, chunks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The ids of several chunks, without special tokens; faster than one by one."""
        if len(chunks) and not 0 <= chunks.min() <= chunks.max() < self.count:
            raise InvalidRequest(
                f"chunks {chunks.min()} to {chunks.max()} requested of {self.folder}, which has {self.count}"
            )
        files = (np.searchsorted(self._first, chunks, side="right") - 1).tolist()
        starts, lengths = self._starts[chunks], self.lengths[chunks]
        places = zip(files, starts.tolist(), (starts + lengths).tolist(), strict=True)
        ids = np.concatenate([NOTHING, *(self._ids[file][start:stop] for file, start, stop in places)])
        ends = np.cumsum(lengths)
        return [ids[start:stop] for start, stop in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def _manifest(folder: Path) -> dict[str, Any]:
    content = read_bytes(folder / MANIFEST, lambda why: InvalidRequest(f"{why}, so {folder} holds no shards"))
    try:
        manifest = json.loads(content)
        version = manifest["version"]
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(
            f"{folder / MANIFEST} is damaged; remove {folder} so that it is created again"
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
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, dtype=np.dtype(dtype))
