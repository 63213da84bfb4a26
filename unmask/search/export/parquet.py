"""A Parquet file of passages, one row each, with vectors as lists of a fixed size."""

import json
from importlib import import_module
from pathlib import Path

from unmask.search.export.passages import Source


def write_parquet(source: Source, file: Path) -> None:
    """Write the file; each block of passages is a row group.

    The key ``unmask`` of the file's metadata says which model made the vectors.
    """
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = arrow.schema(
        {
            "id": arrow.string(),
            "document": arrow.string(),
            "title": arrow.string(),
            "page": arrow.int32(),
            "start": arrow.int32(),
            "end": arrow.int32(),
            "text": arrow.string(),
            "metadata": arrow.string(),
            "vector": arrow.list_(arrow.float32(), source.dimensions),
        },
        metadata={"unmask": json.dumps(source.described())},
    )
    with parquet.ParquetWriter(file, schema, use_dictionary=["document", "title", "metadata"]) as writer:
        for passages, vectors_BE in source.blocks():
            rows = [
                passage._asdict()
                | {"id": str(passage.id), "metadata": json.dumps(passage.metadata, ensure_ascii=False)}
                for passage in passages
            ]
            columns = [arrow.array([row[name] for row in rows], schema.field(name).type) for name in rows[0]]
            numbers = arrow.array(vectors_BE.reshape(-1))
            columns.append(arrow.FixedSizeListArray.from_arrays(numbers, source.dimensions))
            writer.write_table(arrow.table(columns, schema=schema), row_group_size=len(rows))
