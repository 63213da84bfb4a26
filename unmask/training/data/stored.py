"""Tokenized sources in an object store: found by what they were made of, read through a local cache."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unmask.base.stores import open_store, reading
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.shard_cache import ShardCache, StoredFile, StoredIds
from unmask.training.data.shards import (
    DOCUMENTS,
    LENGTHS,
    MANIFEST,
    ShardSet,
    fingerprint_of,
    id_files,
    parsed_manifest,
)
from unmask.training.data.sources import SourceSpec


def stored(
    sources: Sequence[SourceSpec], tokenizer: Tokenizer, url: str, cache: ShardCache
) -> list[ShardSet]:
    """The shards of each source in a copy of the folder that `unmask.training.data.prepare` filled.

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
