"""Passages in files for other stores: Parquet, LanceDB, PostgreSQL with pgvector, and OpenSearch.

Parquet and LanceDB have one row for each passage, with a vector as a list of a fixed size, or the vectors of
tokens as a list of such lists. A database of LanceDB is a folder of Lance datasets, each a table. For
pgvector there is a file in the binary format of COPY
(https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format"), and a script that loads it. All its
numbers are big-endian. A vector is its length and a zero, 16 bits each, and its numbers in float32
(``vector_send``). For OpenSearch there are the body that creates a k-NN index, and bodies of ``_bulk``
requests.
"""

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import InvalidRequest, OutputError, quoted
from unmask.search.export.passages import Block, ExportedPassage, Source, check_dimensions

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""How the file begins: without flags and without an extension."""

END = struct.pack(">h", -1)

NULL = struct.pack(">i", -1)

COLUMNS = {
    "id": "uuid PRIMARY KEY",
    "document": "text NOT NULL",
    "title": "text NOT NULL",
    "page": "integer",
    "start": "integer NOT NULL",
    "end": "integer NOT NULL",
    "text": "text NOT NULL",
    "metadata": "jsonb NOT NULL",
}
"""The columns before the vector, and their types. Names are quoted: ``end`` is a word of SQL."""

SCRIPT = """\
-- Passages and vectors of an index of unmask. Load them from this folder: psql DATABASE -f load.sql
\\set ON_ERROR_STOP on
BEGIN;
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE "{name}" (
{columns}
);
COMMENT ON TABLE "{name}" IS '{comment}';
\\copy "{name}" FROM '{name}.copy' WITH (FORMAT binary)
COMMIT;
-- Exact search: SELECT document, start, "end", text FROM "{name}" ORDER BY vector <#> '[...]' LIMIT 10;
-- Approximate search, of up to 2,000 dimensions:
-- CREATE INDEX ON "{name}" USING hnsw (vector vector_ip_ops);
"""

BULK_BYTES = 10_000_000
"""The largest body of a request, unless one passage is larger: the smallest managed servers accept 10 MiB."""


NEAR_ONE = 0.01
"""How far a length may be from 1 after vectors were rounded to float16."""


def write_parquet(source: Source, file: Path) -> None:
    """Write the file; each block of passages is a row group.

    The key ``unmask`` of the file's metadata says which model made the vectors.
    """
    schema, parquet = _schema(source), import_module("pyarrow.parquet")
    with parquet.ParquetWriter(file, schema, use_dictionary=["document", "title", "metadata"]) as writer:
        for batch in _record_batches(source, schema, source.blocks()):
            writer.write_batch(batch, row_group_size=len(batch))


def write_lance(source: Source, folder: Path, name: str) -> None:
    """Write a database of LanceDB with one table, whose metadata are those of `write_parquet`.

    Raises:
        InvalidRequest: vectors of tokens are not of length 1, and LanceDB compares them by the cosine alone.
        OutputError: Lance cannot write.
    """
    schema, raised = _schema(source), []
    blocks = _of_length_one(source.blocks()) if source.many else source.blocks()

    def batches() -> Iterator[Any]:
        try:
            yield from _record_batches(source, schema, blocks)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        reader = import_module("pyarrow").RecordBatchReader.from_batches(schema, batches())
        import_module("lance").write_dataset(reader, str(folder / f"{name}.lance"), mode="create")
    except Exception as error:
        # Lance makes errors of its own of those that are raised while it reads.
        if raised:
            raise raised[0] from None
        if isinstance(error, OSError):
            raise OutputError(f"cannot write {folder}: {str(error).partition(', /')[0]}") from None
        raise


def _of_length_one(blocks: Iterator[Block]) -> Iterator[Block]:
    for block in blocks:
        for passage, vectors_NE in zip(block.passages, block.vectors(), strict=True):
            lengths = np.linalg.norm(vectors_NE.astype(np.float32), axis=1)
            if (np.abs(lengths - 1) > NEAR_ONE).any():
                raise InvalidRequest(
                    f"the vectors of {quoted(passage.document)} are not of length 1, and LanceDB compares "
                    "vectors of tokens by the cosine alone; name the format qdrant or parquet"
                )
        yield block


def _schema(source: Source) -> Any:
    arrow = import_module("pyarrow")
    vector = arrow.list_(arrow.float16() if source.many else arrow.float32(), source.dimensions)
    return arrow.schema(
        {
            "id": arrow.string(),
            "document": arrow.string(),
            "title": arrow.string(),
            "page": arrow.int32(),
            "start": arrow.int32(),
            "end": arrow.int32(),
            "text": arrow.string(),
            "metadata": arrow.string(),
            **({"vectors": arrow.list_(vector)} if source.many else {"vector": vector}),
        },
        metadata={"unmask": json.dumps(source.described())},
    )


def _record_batches(source: Source, schema: Any, blocks: Iterator[Block]) -> Iterator[Any]:
    """Each block of passages as a batch of Arrow."""
    arrow = import_module("pyarrow")
    for block in blocks:
        rows = [
            passage._asdict()
            | {"id": str(passage.id), "metadata": json.dumps(passage.metadata, ensure_ascii=False)}
            for passage in block.passages
        ]
        columns = [arrow.array([row[name] for row in rows], schema.field(name).type) for name in rows[0]]
        numbers = arrow.array(block.vectors_NE.reshape(-1))
        vectors = arrow.FixedSizeListArray.from_arrays(numbers, source.dimensions)
        if source.many:
            vectors = arrow.ListArray.from_arrays(arrow.array(block.offsets, arrow.int32()), vectors)
        yield arrow.record_batch([*columns, vectors], schema=schema)


def write_pgvector(source: Source, folder: Path, name: str) -> None:
    """Write ``NAME.copy`` and ``load.sql``.

    Raises:
        InvalidRequest: PostgreSQL cannot store a text, or the vectors are too long for pgvector.
    """
    check_dimensions(source, "pgvector")
    length = struct.pack(">ihh", 4 + 4 * source.dimensions, source.dimensions, 0)
    head = struct.pack(">h", len(COLUMNS) + 1)
    with (folder / f"{name}.copy").open("wb") as file:
        file.write(SIGNATURE)
        for block in source.blocks():
            for passage, vector_E in zip(block.passages, block.vectors_NE.astype(">f4"), strict=True):
                file.write(head + b"".join(_fields(passage)) + length + vector_E.tobytes())
        file.write(END)
    columns = COLUMNS | {"vector": f"vector({source.dimensions}) NOT NULL"}
    script = SCRIPT.format(
        name=name,
        columns=",\n".join(f'    "{column}" {kind}' for column, kind in columns.items()),
        comment=json.dumps(source.described(), ensure_ascii=False).replace("'", "''"),
    )
    (folder / "load.sql").write_text(script, encoding="utf-8", newline="\n")


def _fields(passage: ExportedPassage) -> list[bytes]:
    """The columns before the vector, each with its length."""
    metadata = json.dumps(passage.metadata, ensure_ascii=False)
    if "\0" in passage.document + passage.title + passage.text or "\\u0000" in metadata:
        raise InvalidRequest(
            f"the document {passage.document!r} has the character U+0000, which PostgreSQL cannot store; "
            "index it again without, or take another format"
        )
    return [
        _field(passage.id.bytes),
        _field(passage.document.encode()),
        _field(passage.title.encode()),
        NULL if passage.page is None else _field(struct.pack(">i", passage.page)),
        _field(struct.pack(">i", passage.start)),
        _field(struct.pack(">i", passage.end)),
        _field(passage.text.encode()),
        _field(b"\1" + metadata.encode()),
    ]


def _field(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def write_opensearch(source: Source, folder: Path, name: str) -> None:
    """Write ``mapping.json`` and files ``bulk-00001.ndjson`` and so on, each the body of one request.

    Raises:
        InvalidRequest: the vectors are too long for OpenSearch.
    """
    check_dimensions(source, "OpenSearch")
    mapping = json.dumps(_mapping(source), indent=2, ensure_ascii=False)
    (folder / "mapping.json").write_text(mapping + "\n", encoding="utf-8", newline="\n")
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
    for block in source.blocks():
        for passage, vector_E in zip(block.passages, block.vectors_NE, strict=True):
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
