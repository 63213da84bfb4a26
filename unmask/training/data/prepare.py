"""Tokenize sources into shards once, and find them again by a fingerprint of their inputs."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unmask.base.files import unwritable
from unmask.base.stores import open_store, reading
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.shards import MANIFEST, VERSION, ShardSet, fingerprint_of
from unmask.training.data.sources import InputFile, SourceSpec, documents, format_of, input_files
from unmask.training.data.writing import write_shards

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
                for left in folder.glob(f".{target.name}.*.partial"):
                    shutil.rmtree(left)
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
                    None if progress is None else lambda done, tokens: progress(spec, done, tokens),
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
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
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
