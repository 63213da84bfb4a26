"""Tokenize sources, split them into chunks and write these as shards, once; found again by a fingerprint."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import unwritable, whole_folder
from unmask.base.stores import open_store, reading
from unmask.base.system import locked
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.chunking import Chunker, TokenBoundaries, units
from unmask.training.data.shards import MANIFEST, VERSION, ShardSet, fingerprint_of
from unmask.training.data.sources import InputFile, SourceSpec, documents, format_of, input_files
from unmask.training.vocabulary import Vocabulary

FILE_BYTES = 256 * 2**20
"""Approximate maximum size of a file of ids."""
BATCH_CHARACTERS = 2**20
"""Approximate amount of text that is tokenized at once."""

Progress = Callable[[int, int], None]
"""Called with the documents and tokens so far."""


def write_shards(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    spec: SourceSpec,
    folder: Path,
    progress: Progress | None = None,
    *,
    notes: Mapping[str, Any] | None = None,
    file_bytes: int = FILE_BYTES,
) -> ShardSet:
    """Tokenize documents, and write their chunks to a new folder, which is created atomically.

    Args:
        documents: the documents, numbered in this order; see `unmask.training.data.sources.documents`.
        tokenizer: the tokenizer; special tokens are added by the objective.
        spec: how documents are split.
        folder: a folder that does not exist yet, or is empty.
        progress: called after every batch.
        notes: stored in the manifest, such as what identifies the inputs.
        file_bytes: maximum size of a file of ids.

    Raises:
        OutputError: the disk is full or read-only, or the folder exists.
        InvalidRequest: the documents give no chunk at all.
    """
    vocabulary = Vocabulary.of(tokenizer)
    cutter = Chunker(TokenBoundaries.of(tokenizer, vocabulary), spec.max_tokens, spec.min_tokens)
    dtype = np.dtype("<u2" if vocabulary.size <= 2**16 else "<u4")
    count = tokens = 0
    with whole_folder(folder) as partial:
        writer = _Writer(partial, dtype, file_bytes)
        for batch in _batches(documents):
            for chunks in tokenized(batch, tokenizer, cutter, spec):
                writer.add(chunks, count)
                count += 1
                tokens += sum(map(len, chunks))
            writer.flush()
            if progress is not None:
                progress(count, tokens)
        files = writer.close()
        if not tokens:
            raise InvalidRequest(
                f"source {spec.name} gave {count} documents and no chunk; see its files, field, "
                "where and min_tokens"
            )
        manifest = {
            "version": VERSION,
            "source": {**spec.settings(), "files": list(spec.files)},
            "tokenizer": fingerprint_of(tokenizer),
            "vocabulary_size": vocabulary.size,
            "dtype": dtype.str,
            "counts": {"documents": count, "pieces": writer.chunks, "tokens": tokens} | asdict(cutter.losses),
            "files": files,
            **(notes or {}),
        }
        (partial / MANIFEST).write_text(
            # A source's condition may be a date, which TOML has and JSON lacks.
            json.dumps(manifest, indent=2, ensure_ascii=False, default=str) + "\n",
            "utf-8",
            newline="\n",
        )
    return ShardSet.open(folder, verify=False)


def tokenized(
    documents: list[str], tokenizer: Tokenizer, cutter: Chunker, spec: SourceSpec
) -> Iterator[list[NDArray[np.int64]]]:
    """The chunks of each document."""
    parts = [units(document, spec.split_by) for document in documents]
    ids = _ids((text for document in parts for text, _ in document), tokenizer)
    for document in parts:
        yield cutter.chunks([(next(ids), begins) for _, begins in document])


def _ids(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """The ids of each text; only a few encodings are held in memory at once."""
    for batch in _batches(texts):
        for encoding in tokenizer.engine.encode_batch_fast(batch, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.int64)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Batches of texts of about `BATCH_CHARACTERS` each."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document) + 1
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Writer:
    """Appends chunks to files of ids and hashes them."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], file_bytes: int) -> None:
        self.chunks = 0
        self._folder, self._dtype, self._file_bytes = folder, dtype, file_bytes
        self._files: dict[str, dict[str, Any]] = {}
        self._name: str | None = None
        self._hash = hashlib.sha256()
        self._waiting: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self._documents: list[int] = []

    def add(self, chunks: list[NDArray[np.int64]], document: int) -> None:
        self._waiting += chunks
        self._documents += [document] * len(chunks)

    def flush(self) -> None:
        """Write buffered chunks; chunks of a batch share a file."""
        if not self._waiting:
            return
        if self._name is None:
            self._name = f"ids-{len(self._files):05d}.bin"
            self._files[self._name] = {"bytes": 0, "pieces": 0}
            self._hash = hashlib.sha256()
        data = np.concatenate(self._waiting).astype(self._dtype).tobytes()
        with (self._folder / self._name).open("ab") as stream:
            stream.write(data)
        self._hash.update(data)
        entry = self._files[self._name]
        entry["bytes"] += len(data)
        entry["pieces"] += len(self._waiting)
        entry["sha256"] = self._hash.hexdigest()
        self.chunks += len(self._waiting)
        self._lengths.append(np.array([len(ids) for ids in self._waiting], dtype=np.uint32))
        self._waiting = []
        if entry["bytes"] >= self._file_bytes:
            self._name = None

    def close(self) -> dict[str, dict[str, Any]]:
        """Write the tables too; return the manifest's entries of all files."""
        tables = {
            "lengths.npy": np.concatenate([np.zeros(0, dtype=np.uint32), *self._lengths]),
            "documents.npy": np.array(self._documents, dtype=np.int64),
        }
        for name, table in tables.items():
            np.save(self._folder / name, table)
            data = (self._folder / name).read_bytes()
            self._files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return self._files


Announce = Callable[[SourceSpec, int, int], None]
"""Called with the source that is being tokenized, and its documents and tokens so far."""


def prepare(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    folder: Path,
    base: Path = Path(),
    progress: Announce | None = None,
    *,
    verify: bool = True,
) -> list[ShardSet]:
    """The shards of each source: existing ones, or newly created ones.

    A source is stored in ``folder/NAME-FINGERPRINT``; the fingerprint covers its settings, the tokenizer and
    the contents of its files, so that stale data is never read. The remains of an interrupted process are
    removed, and so are shards of earlier contents of the same files. A second process waits for the first.

    Args:
        sources: sources with distinct names.
        tokenizer: the tokenizer.
        folder: the cache folder; created if it does not exist.
        base: the folder that the paths of the sources are relative to.
        progress: called after every batch of a source that is being tokenized.
        verify: whether to compare existing shards with their checksums.

    Raises:
        InvalidRequest: two sources with one name, a missing file, or damaged shards.
        OutputError: the disk is full or read-only.
    """
    names = [spec.name for spec in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"two sources are called {twice[0]!r}; give each its own name")
    return [_prepared(spec, tokenizer, folder, base, progress, verify=verify) for spec in sources]


def _prepared(
    spec: SourceSpec,
    tokenizer: Tokenizer,
    folder: Path,
    base: Path,
    progress: Announce | None,
    *,
    verify: bool,
) -> ShardSet:
    paths = input_files(spec, base)
    for path in paths:
        format_of(path, spec)  # determined before any of them is read
    inputs = [_identity(path) for path in paths]
    made_of = {
        "version": VERSION,
        "source": spec.settings(),
        "tokenizer": fingerprint_of(tokenizer),
        "inputs": inputs,
    }
    fingerprint = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()
    target = folder / f"{spec.name}-{fingerprint[:16]}"
    if not (target / MANIFEST).exists():
        with exclusive_lock(folder, target.name):
            if not (target / MANIFEST).exists():
                for partial in folder.glob(f".{target.name}.*.partial"):
                    shutil.rmtree(partial)
                skipped = {"null_texts": 0}  # counted while documents are read, before the notes are written
                notes = {
                    "fingerprint": fingerprint,
                    "inputs": inputs,
                    "paths": [path if isinstance(path, str) else str(path.resolve()) for path in paths],
                    "skipped": skipped,
                }
                write_shards(
                    documents(spec, base, skipped=skipped),
                    tokenizer,
                    spec,
                    target,
                    None if progress is None else lambda documents, tokens: progress(spec, documents, tokens),
                    notes=notes,
                )
                _remove_stale(target)
    return ShardSet.open(target, verify=verify)


def _remove_stale(target: Path) -> None:
    """Remove shards that differ from those in ``target`` only in the contents of their input files."""
    manifest = json.loads((target / MANIFEST).read_bytes())
    for folder in target.parent.glob(f"{manifest['source']['name']}-*"):
        try:
            other = json.loads((folder / MANIFEST).read_bytes())
        except (OSError, ValueError):
            continue  # not finished
        same = all(other.get(key) == manifest[key] for key in ("version", "source", "tokenizer", "paths"))
        if same and other.get("fingerprint") != manifest["fingerprint"]:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def exclusive_lock(folder: Path, name: str) -> Iterator[None]:
    """A second process waits; a killed process releases the lock."""
    path = folder / f".{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path):
            yield
    except OSError as error:
        raise unwritable(path, error) from None


def _identity(path: InputFile) -> dict[str, Any]:
    """Name, size and SHA-256 of a file, or of all files below a folder."""
    if isinstance(path, str):
        return reading(path, lambda: _identity_of_url(path))
    size, digest = 0, hashlib.sha256()
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            size += each.stat().st_size
            with each.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return {"name": path.name, "bytes": size, "sha256": digest.hexdigest()}


def _identity_of_url(url: str) -> dict[str, Any]:
    files, path = open_store(url)
    size, digest = 0, hashlib.sha256()
    with files.open(path, "rb") as stream:
        while block := stream.read(2**20):
            size += len(block)
            digest.update(block)
    # As of a file of this machine, whose digest is over the digests of the files that a folder may hold.
    whole = hashlib.sha256(digest.digest()).hexdigest()
    return {"name": url.rpartition("/")[2], "bytes": size, "sha256": whole}
