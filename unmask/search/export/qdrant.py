"""Passages as points of a Qdrant collection, on a server or in a folder (local mode)."""

import json
import os
import sqlite3
from importlib import import_module
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest, OutputError, quoted
from unmask.search.export.passages import Block, Source

KEY = "QDRANT_API_KEY"
"""The environment variable of the server's API key, which other users would see in a command."""

POINTS_AT_ONCE = 256
"""Points of one request: with 4,096 numbers each about 20 MB of JSON, and servers accept 32 MB."""

TIMEOUT = 60
"""Seconds for one request."""


def write_qdrant_folder(source: Source, folder: Path, name: str) -> None:
    """Write the folder of Qdrant's local mode, which holds all points in memory."""
    client = import_module("qdrant_client").QdrantClient(path=str(folder))
    try:
        _create(source, client, name)
        _fill(source, client, name)
    except sqlite3.Error as error:  # its word for a full disk
        raise OutputError(f"cannot write {folder}: {error}") from None
    finally:
        client.close()


def write_qdrant_server(source: Source, url: str, name: str) -> None:
    """Make a collection on a server. If that fails, the collection is deleted.

    Raises:
        OutputError: the collection exists, or the server refuses or cannot be reached.
    """
    exceptions = import_module("qdrant_client.http.exceptions")
    try:
        client = import_module("qdrant_client").QdrantClient(
            url=url, api_key=os.environ.get(KEY), timeout=TIMEOUT, check_compatibility=False
        )
    except ValueError as error:
        raise InvalidRequest(f"output is {quoted(url)}, which is no address: {error}") from None
    try:
        if client.collection_exists(name):
            raise OutputError(f"the server {url} has a collection {name} already; choose another name")
        # What another process made in between is not deleted: the server refuses a name that exists.
        _create(source, client, name)
        try:
            _fill(source, client, name)
        except BaseException:
            _delete(client, url, name)
            raise
    except exceptions.ApiException as error:
        raise OutputError(f"cannot write to {url}: {_reason(error)}") from None
    finally:
        client.close()


def _delete(client: Any, url: str, name: str) -> None:
    """Delete a collection that is incomplete."""
    try:
        client.delete_collection(name)
    except import_module("qdrant_client.http.exceptions").ApiException as error:
        raise OutputError(
            f"{url} does not answer, and its collection {name} is incomplete; delete it: {_reason(error)}"
        ) from None


def _create(source: Source, client: Any, name: str) -> None:
    """Make an empty collection; its metadata name the model."""
    models = import_module("qdrant_client.models")
    # Not cosine: Qdrant would divide vectors by their lengths again, which changes their last digits.
    vectors = models.VectorParams(size=source.dimensions, distance=models.Distance.DOT)
    client.create_collection(name, vectors_config=vectors, metadata=source.described())


def _fill(source: Source, client: Any, name: str) -> None:
    """Store all passages, and count them."""
    models = import_module("qdrant_client.models")
    for block in source.blocks():
        for start in range(0, len(block.passages), POINTS_AT_ONCE):
            part = slice(start, start + POINTS_AT_ONCE)
            points = models.Batch(**_batch(Block(block.passages[part], block.vectors_BE[part])))
            client.upsert(name, points, wait=True)
    stored, passage_count = client.count(name, exact=True).count, source.contents.passage_count
    if stored != passage_count:
        raise OutputError(
            f"the collection {name} has {stored:,} points of {passage_count:,} passages; write it again"
        )


def _batch(block: Block) -> dict[str, Any]:
    """Ids, vectors and payloads of points."""
    payloads = [passage._asdict() for passage in block.passages]
    ids = [str(payload.pop("id")) for payload in payloads]
    return {"ids": ids, "vectors": block.vectors_BE.tolist(), "payloads": payloads}


def _reason(error: Exception) -> str:
    """One clause of what the server answered, or why there is no answer."""
    content = getattr(error, "content", b"")
    try:
        reason = str(json.loads(content)["status"]["error"])
    except (ValueError, TypeError, KeyError):
        reason = str(getattr(error, "source", error))
    return " ".join(reason.split()).rstrip(".")
