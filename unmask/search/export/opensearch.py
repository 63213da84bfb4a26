"""Passages for OpenSearch: the body that creates a k-NN index, and bodies of ``_bulk`` requests."""

import json
from collections.abc import Iterator
from pathlib import Path

from unmask.search.export.passages import Source, check_dimensions

BULK_BYTES = 10_000_000
"""The largest body of a request, unless one passage is larger: the smallest managed servers accept 10 MiB."""


def write_opensearch(source: Source, folder: Path, name: str) -> None:
    """Write ``mapping.json`` and files ``bulk-00001.ndjson`` and so on, each the body of one request.

    Raises:
        InvalidRequest: the vectors are too long for OpenSearch.
    """
    check_dimensions(source, "OpenSearch")
    mapping = json.dumps(_mapping(source), indent=2, ensure_ascii=False)
    (folder / "mapping.json").write_text(mapping + "\n", encoding="utf-8")
    number, size = 1, 0
    file = (folder / _bulk_name(number)).open("wb")
    try:
        for action in _actions(source, name):
            if size and size + len(action) > BULK_BYTES:
                file.close()
                number, size = number + 1, 0
                file = (folder / _bulk_name(number)).open("wb")
            file.write(action)
            size += len(action)
    finally:
        file.close()


def _bulk_name(number: int) -> str:
    return f"bulk-{number:05d}.ndjson"


def _actions(source: Source, name: str) -> Iterator[bytes]:
    """For each passage the two lines that store it."""
    for passages, vectors_BE in source.blocks():
        for passage, vector_E in zip(passages, vectors_BE, strict=True):
            action = {"index": {"_index": name, "_id": str(passage.id)}}
            # Every float32 is a float64, whose digits are enough to find it again.
            fields = passage._asdict() | {"vector": vector_E.tolist()}
            del fields["id"]
            lines = (json.dumps(action), json.dumps(fields, ensure_ascii=False), "")
            yield "\n".join(lines).encode()


def _mapping(source: Source) -> dict[str, object]:
    method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
    properties = {
        "document": {"type": "keyword"},
        "title": {"type": "text"},
        "page": {"type": "integer"},
        "start": {"type": "integer"},
        "end": {"type": "integer"},
        "text": {"type": "text"},
        # One field for all keys, since documents may give one key values of different types.
        "metadata": {"type": "flat_object"},
        "vector": {"type": "knn_vector", "dimension": source.dimensions, "method": method},
    }
    return {
        "settings": {"index": {"knn": True}},
        "mappings": {"_meta": source.described(), "properties": properties},
    }
