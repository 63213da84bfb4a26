"""An index written for another store: what can be written, where, and what was."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from unmask.base.arguments import check_callable, check_choice
from unmask.base.files import check_can_write, whole_file, whole_folder
from unmask.base.optional import require
from unmask.errors import InvalidRequest, OutputError, quoted
from unmask.search.contents import Contents
from unmask.search.export.files import write_lance, write_opensearch, write_parquet, write_pgvector
from unmask.search.export.passages import Source
from unmask.search.export.qdrant import write_qdrant_folder, write_qdrant_server
from unmask.search.options import ExportedView, StoreFormat, View
from unmask.search.settings import IndexSettings, ModelIdentity
from unmask.search.views.vectors import dense_width
from unmask.tasks import Progress

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""Names that every store accepts."""

OF_TOKENS: tuple[StoreFormat, ...] = ("parquet", "lance", "qdrant")
"""Formats that hold a vector for each token of a passage."""


@dataclass(frozen=True)
class Exported:
    """What `Index.export` wrote."""

    format: StoreFormat
    output: str
    """The file, the folder or the address of the server."""
    name: str
    """Of the collection, the table or the index."""
    documents: int
    passages: int
    view: ExportedView
    """Whose vectors were written."""
    vectors: int
    """One for each passage, or one for each token."""
    dimensions: int
    """The numbers of a vector: float32, or in vectors of tokens float16."""
    decoded: bool
    """Whether vectors are what the codes of a compressed index stand for, and not the model's numbers."""
    model: ModelIdentity
    """What made the vectors, and must make those of queries."""
    views_left_out: tuple[View, ...]
    """Views of the index that were not written: stores get the vectors of one."""


def export(
    contents: Contents,
    settings: IndexSettings,
    output: str | Path,
    format: StoreFormat,
    *,
    name: str,
    view: ExportedView | None,
    progress: Progress | None,
) -> Exported:
    """Write the passages of ``contents``; see `unmask.search.index.Index.export`."""
    check_choice("format", format, get_args(StoreFormat))
    check_callable("progress", progress)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(
            f"name is {quoted(name)}; it can have up to 63 letters from a to z, digits and underscores, and "
            "begins with a letter"
        )
    if not isinstance(output, str | Path):
        raise InvalidRequest(f"output is {quoted(output)}; name a file, a folder or an address")
    source = _source(contents, settings, progress, view)
    if source.many and format not in OF_TOKENS:
        raise InvalidRequest(
            f"{format} holds one vector for each passage, and this is the view multi_vector; name one of the "
            f"formats {', '.join(OF_TOKENS)}, or view dense of an index that has it"
        )
    if format in OF_TOKENS:
        require(format)
    place = str(output)
    server = place.startswith(("http://", "https://"))
    if server and format != "qdrant":
        raise InvalidRequest(f"output is {quoted(place)} and {format} is written to a disk; name a path")
    if server:
        write_qdrant_server(source, place, name)
    elif format == "parquet":
        _check_new_file(Path(place))
        with whole_file(Path(place)) as partial:
            write_parquet(source, partial)
    else:
        write = {
            "qdrant": write_qdrant_folder,
            "lance": write_lance,
            "pgvector": write_pgvector,
            "opensearch": write_opensearch,
        }[format]
        with whole_folder(Path(place)) as partial:
            write(source, partial, name)
    return Exported(
        format,
        place,
        name,
        contents.document_count,
        contents.passage_count,
        source.view,
        source.vector_count,
        source.dimensions,
        source.decoded,
        source.model,
        tuple(left for left in settings.views if left != source.view),
    )


def _source(
    contents: Contents, settings: IndexSettings, progress: Progress | None, view: ExportedView | None = None
) -> Source:
    """What is to be written.

    Raises:
        InvalidRequest: the index has no passages, or no vectors of that view.
    """
    if view is None:
        view = "dense" if "dense" in settings.models else "multi_vector"
    check_choice("view", view, get_args(ExportedView))
    if view not in settings.models:
        raise InvalidRequest(
            f"the index has the views {', '.join(settings.views)} and other stores get the vectors of "
            "dense or multi_vector; name the view that it has, or index the documents with an embedding "
            "model, such as default"
        )
    if not contents.passage_count:
        raise InvalidRequest("the index has no passages to write; add documents to it")
    arrays = contents.segments[0].arrays
    if view == "dense":
        dimensions = dense_width(arrays, contents.quantizer)
    elif contents.codec is not None:
        dimensions = contents.codec.centroids_KE.shape[1]
    else:
        dimensions = int(arrays["vectors/values"].shape[1])
    return Source(contents, settings.models[view], dimensions, progress, view)


def _check_new_file(path: Path) -> None:
    if path.suffix != ".parquet":
        raise InvalidRequest(f"{path} does not end in .parquet; name the file with this ending")
    if path.exists():
        raise OutputError(f"{path} exists already; name a file that does not")
    check_can_write(path)
