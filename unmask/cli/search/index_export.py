"""``unmask index-export``: an index written for another vector store."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import print_json, progress
from unmask.search.options import StoreFormat


def index_export(
    index: Annotated[Path, Parameter(help="the folder of an index")],
    /,
    *,
    output: Annotated[
        str,
        Parameter(
            name=["--output", "-o"],
            help="what to write, which must not exist: a file for parquet, the address of a server or a "
            "folder for qdrant, else a folder",
        ),
    ],
    format: Annotated[StoreFormat, Parameter(help="the store, or the format of the file")],
    name: Annotated[
        str, Parameter(help="the collection of Qdrant, the table of PostgreSQL, the index of OpenSearch")
    ] = "passages",
    json: JsonOption = False,
) -> None:
    """Write the passages of an index and their vectors for another vector store.

    Every passage gets its document, its characters in it, its text, the metadata and the vector. What is
    written appears whole or not at all. No model is loaded. The API key of a Qdrant server is read from
    QDRANT_API_KEY.
    """
    from unmask.search.index import Index

    opened = Index.open(index)
    with progress("writing passages", opened.passages) as report:
        made = opened.export(output, format, name=name, progress=report)
    if json:
        print_json(made)
        return
    print(
        f"{made.passages:,} passages of {made.documents:,} documents are in {made.output}, with vectors of "
        f"{made.dimensions:,} numbers made by {made.model.name}"
    )
    if made.views_left_out:
        print(f"not written: {', '.join(made.views_left_out)}")
