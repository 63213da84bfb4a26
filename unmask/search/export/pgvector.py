"""Passages for PostgreSQL with pgvector: a file in the binary format of COPY, and a script that loads it.

The format: https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format". All numbers are
big-endian. A vector is its length and a zero, 16 bits each, and its numbers in float32 (``vector_send``).
"""

import json
import struct
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.search.export.passages import ExportedPassage, Source, check_dimensions

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
        for passages, vectors_BE in source.blocks():
            for passage, vector_E in zip(passages, vectors_BE.astype(">f4"), strict=True):
                file.write(head + b"".join(_fields(passage)) + length + vector_E.tobytes())
        file.write(END)
    columns = COLUMNS | {"vector": f"vector({source.dimensions}) NOT NULL"}
    script = SCRIPT.format(
        name=name,
        columns=",\n".join(f'    "{column}" {kind}' for column, kind in columns.items()),
        comment=json.dumps(source.described(), ensure_ascii=False).replace("'", "''"),
    )
    (folder / "load.sql").write_text(script, encoding="utf-8")


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
