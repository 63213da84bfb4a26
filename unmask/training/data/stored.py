"""Tokenized sources in an object store: found by what they were made of, read through a local cache.

The cache is a folder of this machine: files are downloaded whole, verified, and bounded in size.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import whole_file
from unmask.base.stores import open_store, reading
from unmask.errors import InvalidRequest, UnmaskError
from unmask.text import Tokenizer
from unmask.training.data.shards import (
    DOCUMENTS,
    LENGTHS,
    MANIFEST,
    ShardSet,
    fingerprint_of,
    id_files,
    mapped,
    parsed_manifest,
)
from unmask.training.data.sources import SourceSpec
from unmask.training.data.writing import exclusive_lock

ABANDONED_SECONDS = 3600.0
"""A partial file that nothing was written to for so long is of a process that was killed."""


@dataclass(frozen=True)
class StoredFile:
    """A file of an object store whose content is known beforehand."""

    url: str
    bytes: int
    sha256: str


class ShardCache:
    """Copies of stored files, by their SHA-256, so that runs and processes share them.

    Several processes may use one folder: a file is downloaded by one of them, and appears whole. If the
    folder exceeds its limit, the files that were not used for longest are removed; a process that is reading
    one keeps what it has opened. Downloads in progress may exceed the limit.

    Args:
        folder: created if it does not exist.
        max_bytes: of all files in the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._verified: set[str] = set()

    def open(self, file: StoredFile) -> BinaryIO:
        """The file, open for reading; downloaded if it is not there.

        Raises:
            InvalidRequest: the store does not give it, or gives something else; or the copy cannot be read.
            OutputError: the disk is full or read-only.
        """
        path = self.folder / file.sha256
        while True:
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                self._fetch(file, path)
                continue  # another process may have removed it meanwhile
            except OSError as error:
                raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
            if file.sha256 in self._verified or not _difference(stream, file):
                self._verified.add(file.sha256)
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return stream
            stream.close()
            path.unlink(missing_ok=True)  # changed on the disk

    def _fetch(self, file: StoredFile, path: Path) -> None:
        # 256 locks, so that different files are downloaded at the same time and few lock files remain.
        with exclusive_lock(self.folder, file.sha256[:2]):
            if path.exists():
                return
            with whole_file(path) as partial:
                reading(file.url, lambda: _download(file, partial))
                self._verified.add(file.sha256)
                with exclusive_lock(self.folder, "room"):
                    self._make_room()

    def _make_room(self) -> None:
        """Remove the files used longest ago while all, partial ones included, exceed the limit."""
        total, candidates = 0, []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # finished or removed by another process
            total += status.st_size
            partial = path.name.startswith(".")
            if not partial or time.time() - status.st_mtime > ABANDONED_SECONDS:
                candidates.append((not partial, status.st_mtime_ns, status.st_size, path))
        for _, _, size, path in sorted(candidates):
            if total <= self.max_bytes:
                break
            if size:  # locks are empty
                with contextlib.suppress(PermissionError):  # Windows keeps what another process reads
                    path.unlink(missing_ok=True)
                    total -= size


def _download(file: StoredFile, partial: Path) -> None:
    files, path = open_store(file.url)
    files.get_file(path, str(partial))
    with partial.open("rb") as stream:
        why = _difference(stream, file)
    if why:
        raise OSError(f"it is not what was written ({why})")


def _difference(stream: BinaryIO, file: StoredFile) -> str:
    """How a copy, open at its start, differs from what was written; empty if it does not."""
    size = os.fstat(stream.fileno()).st_size
    if size != file.bytes:
        return f"{size} bytes, {file.bytes} expected"
    digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    stream.seek(0)
    return "" if digest == file.sha256 else "another checksum"


class ReadAhead:
    """A thread that downloads files before they are needed; it ends when there is nothing left to do."""

    def __init__(self, cache: ShardCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._wanted: list[StoredFile] = []
        self._runs = False

    def want(self, files: Iterable[StoredFile]) -> None:
        """Download these next, in this order, instead of what was wanted before."""
        with self._lock:
            self._wanted = list(files)
            if self._wanted and not self._runs:
                self._runs = True
                # A daemon, so that a process that ends does not wait for a download.
                threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (file := self._next()) is not None:
            # What the store refuses is reported when the file is needed.
            with contextlib.suppress(UnmaskError):
                self._cache.open(file).close()

    def _next(self) -> StoredFile | None:
        with self._lock:
            self._runs = bool(self._wanted)
            return self._wanted.pop(0) if self._wanted else None


class StoredIds:
    """Ids in files of an object store, memory-mapped only while they are read."""

    def __init__(self, files: Sequence[StoredFile], dtype: str, cache: ShardCache) -> None:
        self._files, self._dtype, self._cache = files, dtype, cache
        self._ahead = ReadAhead(cache)

    def of_file(self, number: int) -> NDArray[np.generic]:
        """All ids of a file, one after another."""
        with self._cache.open(self._files[number]) as stream:
            return mapped(stream, self._dtype)

    def want(self, files: Sequence[int]) -> None:
        """Download these next, in the background."""
        self._ahead.want([self._files[number] for number in files])


def stored(
    sources: Sequence[SourceSpec], tokenizer: Tokenizer, url: str, cache: ShardCache
) -> list[ShardSet]:
    """The shards of each source in a copy of the folder that `unmask.training.data.writing.prepare` filled.

    The texts are not read: a source is found by its settings and the tokenizer.

    Args:
        sources: sources with distinct names.
        tokenizer: the tokenizer.
        url: the folder in the store.
        cache: the local copies.

    Raises:
        InvalidRequest: the store cannot be read, or holds no shards of a source, or several.
    """
    folders = _folders(url) if sources else []
    return [_found(spec, fingerprint_of(tokenizer), folders, url, cache) for spec in sources]


def _folders(url: str) -> list[str]:
    files, path = open_store(url)
    listed = reading(url, lambda: files.ls(path, detail=False))
    return sorted(f"{url.rstrip('/')}/{path.rstrip('/').rpartition('/')[2]}" for path in listed)


def _found(spec: SourceSpec, tokenizer: str, folders: Sequence[str], url: str, cache: ShardCache) -> ShardSet:
    settings = json.loads(json.dumps({**spec.settings(), "files": spec.files}, default=str))
    candidates = [folder for folder in folders if folder.rpartition("/")[2].rpartition("-")[0] == spec.name]
    manifests = {folder: _manifest(folder) for folder in candidates}
    fit = [
        folder
        for folder, manifest in manifests.items()
        if manifest["source"] == settings and manifest["tokenizer"] == tokenizer
    ]
    if len(fit) > 1:
        raise InvalidRequest(
            f"{url} holds source {spec.name} {len(fit)} times, of different contents of its files "
            f"({', '.join(fit)}); remove all but one"
        )
    if not fit:
        there = f", but {', '.join(candidates)} of other settings or another tokenizer" if candidates else ""
        raise InvalidRequest(
            f"{url} holds no tokens of source {spec.name}{there}; tokenize the source with data.cache in a "
            "local folder, and copy that folder there"
        )
    return open_stored(fit[0], manifests[fit[0]], cache)


def _manifest(folder: str) -> dict[str, Any]:
    files, path = open_store(folder)
    return parsed_manifest(reading(folder, lambda: files.cat_file(f"{path}/{MANIFEST}")), folder)


def open_stored(folder: str, manifest: Mapping[str, Any], cache: ShardCache) -> ShardSet:
    """The set in a folder of a store; its tables are downloaded, its ids when they are needed."""
    stored = {
        name: StoredFile(f"{folder}/{name}", entry["bytes"], entry["sha256"])
        for name, entry in manifest["files"].items()
    }
    with cache.open(stored[LENGTHS]) as lengths, cache.open(stored[DOCUMENTS]) as documents:
        return ShardSet.of_tables(
            folder,
            manifest,
            np.load(lengths),
            np.load(documents),
            StoredIds([stored[name] for name in id_files(manifest)], manifest["dtype"], cache),
        )
