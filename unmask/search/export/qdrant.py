"""Passages as points of a Qdrant collection, on a server or in a folder (local mode)."""

import json
import os
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import InvalidRequest, OutputError, quoted
from unmask.search.export.passages import Block, Source

KEY = "QDRANT_API_KEY"
"""The environment variable of the server's API key, which other users would see in a command."""

POINTS_AT_ONCE = 256
"""The most points of one request."""

NUMBERS_AT_ONCE = 1 << 20
"""The most numbers of one request, unless a passage has more: about 20 MB of JSON, and servers accept 32."""

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
    if source.many:
        vectors.multivector_config = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        vectors.datatype = models.Datatype.FLOAT16
    client.create_collection(name, vectors_config=vectors, metadata=source.described())


def _fill(source: Source, client: Any, name: str) -> None:
    """Store all passages, and count them."""
    for block in source.blocks():
        for part in _requests(block):
            client.upsert(name, _points(part, many=source.many), wait=True)
    stored, passage_count = client.count(name, exact=True).count, source.contents.passage_count
    if stored != passage_count:
        raise OutputError(
            f"the collection {name} has {stored:,} points of {passage_count:,} passages; write it again"
        )


def _requests(block: Block) -> Iterator[Block]:
    """Parts of a block, each of at most `POINTS_AT_ONCE` points and `NUMBERS_AT_ONCE` numbers."""
    vectors = NUMBERS_AT_ONCE // block.vectors_NE.shape[1]
    start = 0
    while start < len(block.passages):
        fitting = int(np.searchsorted(block.offsets, block.offsets[start] + vectors, side="right")) - 1
        stop = min(max(fitting, start + 1), start + POINTS_AT_ONCE)
        yield block.part(start, stop)
        start = stop


def _points(block: Block, *, many: bool) -> Any:
    """Ids, vectors and payloads of points; one whose tokens have no vector has a payload alone."""
    models = import_module("qdrant_client.models")
    payloads = [passage._asdict() for passage in block.passages]
    ids = [str(payload.pop("id")) for payload in payloads]
    if not many:
        return models.Batch(ids=ids, vectors=block.vectors_NE.tolist(), payloads=payloads)
    vectors = [vectors_NE.tolist() or {} for vectors_NE in block.vectors()]
    return [
        models.PointStruct(id=id, vector=vector, payload=payload)
        for id, vector, payload in zip(ids, vectors, payloads, strict=True)
    ]


def _reason(error: Exception) -> str:
    """One clause of what the server answered, or why there is no answer."""
    content = getattr(error, "content", b"")
    try:
        reason = str(json.loads(content)["status"]["error"])
    except (ValueError, TypeError, KeyError):
        reason = str(getattr(error, "source", error))
    return " ".join(reason.split()).rstrip(".")
