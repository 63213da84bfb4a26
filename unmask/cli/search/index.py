"""``unmask index`` and ``index-export``: make an index of documents, add to it, check it, export it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.base.progress import counted
from unmask.cli.options import RUN, JsonOption, RunOptions
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.errors import CorruptIndex, EmptyText, InvalidRequest, UnmaskError
from unmask.search.documents.values import MAX_DOCUMENT_BYTES
from unmask.search.options import (
    Chunking,
    CodeRule,
    DenseBits,
    ExportedView,
    Stemmer,
    StoreFormat,
    VectorBits,
)

if TYPE_CHECKING:
    from unmask.search.index import Index
    from unmask.search.settings import IndexSettings
    from unmask.search.values import Added
    from unmask.text.special import SpecialTokens


LISTED = 10
"""Names of documents that are printed; --json has all. Everything that was skipped is named."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NewIndexOptions:
    """What a new index is made with; an existing one keeps its own."""

    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id, default, or none for BM25 alone; repeat it for several "
            "views of each passage",
        ),
    ] = None
    bm25: Annotated[bool, Parameter(help="keep terms for BM25, too")] = True
    passage_tokens: Annotated[
        int | None, Parameter(help="the longest passage in tokens; default: 256, or what the model reads")
    ] = None
    overlap_tokens: Annotated[int | None, Parameter(help="tokens that neighboring passages share")] = None
    chunking: Annotated[
        Chunking | None,
        Parameter(help="embed every passage alone (windows), or each document whole (late)"),
    ] = None
    whole_documents: Annotated[
        bool, Parameter(negative="", help="one passage per document, of which models read the beginning")
    ] = False
    code: Annotated[
        CodeRule | None, Parameter(help="how source code is cut; default: syntax, with the extra code")
    ] = None
    stemmer: Annotated[
        Stemmer | None, Parameter(help="language of the words that BM25 reduces to stems; default: english")
    ] = None

    vector_bits: Annotated[
        VectorBits | None,
        Parameter(
            help="bits of each number of a token's vector, for models of many vectors; default: float16"
        ),
    ] = None
    token_pooling: Annotated[
        int | None,
        Parameter(help="tokens of a passage that share a vector on average, for models of many vectors"),
    ] = None
    dense_bits: Annotated[
        DenseBits | None,
        Parameter(
            help="for models of one vector per passage, bits of each number of the codes that search "
            "--approximate reads first; default: no codes"
        ),
    ] = None
    dense_floats: Annotated[bool, Parameter(help="store dense vectors in float32 beside their codes")] = True

    def named(self) -> dict[str, Any]:
        """The options that were given, as arguments of `Index.create`."""
        options = {
            "passage_tokens": self.passage_tokens,
            "overlap_tokens": self.overlap_tokens,
            "chunking": self.chunking,
            "whole_documents": self.whole_documents or None,
            "code": self.code,
            "stemmer": self.stemmer,
            "bm25": None if self.bm25 else False,
            "vector_bits": self.vector_bits,
            "token_pooling": self.token_pooling,
            "dense_bits": self.dense_bits,
            "dense_floats": None if self.dense_floats else False,
        }
        return {name: value for name, value in options.items() if value is not None}

    def require(self, settings: "IndexSettings", path: Path) -> None:
        """Refuse an option that differs from what the index at ``path`` was made with.

        Raises:
            InvalidRequest: names the option.
        """
        passages, analyzer = settings.passages, settings.analyzer
        current = {
            "passage_tokens": passages.max_tokens,
            "overlap_tokens": passages.overlap_tokens,
            "chunking": passages.chunking,
            "whole_documents": passages.whole,
            "code": passages.code,
            "stemmer": None if analyzer is None else analyzer.stemmer,
            "bm25": analyzer is not None,
            "vector_bits": settings.vectors.bits,
            "token_pooling": settings.vectors.pooling,
            "dense_bits": settings.vectors.dense_bits,
            "dense_floats": settings.vectors.dense_floats,
        }
        options = [name for name, value in self.named().items() if current[name] != value]
        if self.model == ["none"] and settings.models:
            options.insert(0, "model none")
        if options:
            option = options[0].replace("_", "-")
            option = f"no-{option}" if options[0] in ("bm25", "dense_floats") else option
            raise InvalidRequest(
                f"{path} exists and keeps what it was made with; leave --{option} out, or name a new folder"
            )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Which files are read, and how."""

    field: Annotated[
        str | None, Parameter(help="the column or key of the text in JSONL, CSV and Parquet; default: text")
    ] = None
    id_field: Annotated[str | None, Parameter(help="the column or key of a row's id; default: _id or id")] = (
        None
    )
    include: Annotated[
        list[str] | None, Parameter(negative="", help="read only files that match, such as '*.md'")
    ] = None
    exclude: Annotated[list[str] | None, Parameter(negative="", help="leave out files that match")] = None
    max_document_bytes: Annotated[
        int, Parameter(help="skip a document whose text has more bytes, unpacked")
    ] = MAX_DOCUMENT_BYTES
    follow_links: Annotated[
        bool, Parameter(negative="", help="follow symbolic links that lead out of a folder")
    ] = False


NEW = NewIndexOptions()
READING = ReadingOptions()


def index(
    inputs: Annotated[
        list[Path] | None,
        Parameter(
            name="inputs",
            negative="",
            help="folders and files: text, Markdown, HTML, PDF, JSONL, CSV, TSV, Parquet, source code",
        ),
    ] = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="the folder of the index")],
    new: NewIndexOptions = NEW,
    reading: ReadingOptions = READING,
    prune: Annotated[
        bool, Parameter(negative="", help="delete documents of the index that the inputs do not have")
    ] = False,
    delete: Annotated[
        list[str] | None, Parameter(negative="", help="delete the document with this id; repeat it for more")
    ] = None,
    compact: Annotated[
        bool, Parameter(negative="", help="merge all segments into one and free what was deleted")
    ] = False,
    verify: Annotated[
        bool, Parameter(negative="", help="compare every byte of the index with its checksums, and stop")
    ] = False,
    workers: Annotated[
        int, Parameter(help="processes that compute, of one thread each if there are several")
    ] = 1,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Make an index of documents to search, or add to one.

    Documents that the index has already are not computed again: give the same command to resume one that was
    stopped, or to bring the index up to date. Files that cannot be read are skipped and named; if nothing is
    read, that is an error.
    """
    if verify:
        _verify(output, json)
        return
    if workers < 1:
        raise InvalidRequest(f"--workers is {workers}; it must be at least 1")
    if workers > 1 and run.threads not in (None, 1):
        raise InvalidRequest(
            f"--threads is {run.threads}, and each of several --workers has one; leave --threads out"
        )
    if not inputs and not delete and not compact:
        raise InvalidRequest("no inputs are given; name the files or folders to index")
    if prune and not inputs:
        raise InvalidRequest("--prune needs the inputs whose documents are kept; name them")
    opened, created = _opened(output, new, run, create=bool(inputs))
    deleted = opened.delete(delete) if delete else 0
    with _resumable(opened, created=created):
        added = _add(opened, inputs, reading, workers) if inputs else None
        if inputs and added is not None:
            _require_documents(inputs, added, json)
    if prune and added is not None and added.missing:
        deleted += opened.delete(added.missing)
    if compact:
        opened.compact()
    _report(opened, added, deleted, pruned=prune, json=json)


def _opened(output: Path, new: NewIndexOptions, run: RunOptions, *, create: bool) -> tuple["Index", bool]:
    """The index, and whether it is new."""
    from unmask.search.index import Index

    names = new.model or []
    exists = output.exists() and (not output.is_dir() or any(output.iterdir()))
    if not exists and not create:
        raise InvalidRequest(f"there is no index {output}; name the folder of one, or inputs to index")
    if exists:
        opened = open_index(output, model_names(names) if names else [], run)
        new.require(opened.settings, output)
        _require_reading(opened, run.special_tokens)
        return opened, False
    names = model_names(names)
    loaded = [run.load(name) for name in names]
    return Index.create(
        output, loaded, sources=names, special_tokens=run.special_tokens or "text", **new.named()
    ), True


def _require_reading(opened: "Index", special_tokens: "SpecialTokens | None") -> None:
    """Refuse to read special tokens otherwise than the index does."""
    for identity in opened.settings.models.values():
        if special_tokens not in (None, identity.special_tokens):
            raise InvalidRequest(
                f"--special-tokens is {special_tokens}, and {opened.path} was made with "
                f"{identity.special_tokens}; leave it out, or index again into a new folder"
            )


@contextmanager
def _resumable(opened: "Index", *, created: bool) -> Iterator[None]:
    """Of an addition that is stopped: remove a new index without documents, else say how to resume."""
    from unmask.search.index import remove_if_empty

    before = opened.generation
    try:
        yield
    except BaseException as error:
        removed = created and remove_if_empty(opened.path)
        if not removed and opened.generation != before:
            way_on = (
                f"{opened.path} has {counted(len(opened), 'document')}; give the same command again to "
                "resume with what is missing"
            )
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"stopped; {way_on}") from None
            if isinstance(error, UnmaskError):
                error.args = (f"{error}; {way_on}",)
        raise


def model_names(names: Sequence[str]) -> list[str]:
    """The models of a new index: ``default`` if none is named, and no model for the name ``none``.

    Raises:
        InvalidRequest: ``none`` stands beside another name.
    """
    if "none" in names and len(names) > 1:
        raise InvalidRequest(
            f"--model none makes an index without a model, and {len(names)} models are named; leave none "
            "out, or give it alone"
        )
    return [] if list(names) == ["none"] else [*names] or ["default"]


def open_index(path: Path, names: Sequence[str], run: RunOptions) -> "Index":
    """The index in a folder, whose models are loaded with the options of the command.

    Args:
        path: the folder.
        names: where models of the index are now; the others are loaded from where they were.
        run: how models are loaded.
    """
    from unmask.search.index import Index

    return Index.open(
        path,
        [run.load(name) for name in names],
        loader=lambda identity: replace(run, revision=identity.revision).load(identity.source),
    )


def _add(opened: "Index", inputs: list[Path], reading: ReadingOptions, workers: int) -> "Added":
    from unmask.search.documents import read_documents

    documents = read_documents(
        inputs,
        field=reading.field,
        id_field=reading.id_field,
        include=reading.include or (),
        exclude=reading.exclude or (),
        max_document_bytes=reading.max_document_bytes,
        follow_links=reading.follow_links,
    )
    with progress("indexing passages", 0) as report:
        return opened.add(documents, progress=report, workers=workers)


def _require_documents(inputs: Sequence[Path], added: "Added", json: bool) -> None:
    """Refuse inputs of which no document is read.

    Raises:
        EmptyText: there is none; what was skipped is printed before.
    """
    if added.added or added.updated or added.unchanged:
        return
    if json:
        print_json({"added": added})
    else:
        _list_skipped(added)
    raise EmptyText(
        f"no document was read from {', '.join(map(str, inputs))} ({len(added.skipped):,} skipped); "
        "name files with text"
    )


def _verify(output: Path, json: bool) -> None:
    from unmask.search.index import Index

    damage = Index.verify(output)
    if json:
        print_json({"index": output, "whole": not damage, "damage": damage})
    for sentence in damage if not json else ():
        print(sentence)
    if damage:
        raise CorruptIndex(
            f"{output} has {len(damage)} damaged file{'s' * (len(damage) > 1)}; restore them from a copy, or "
            "index the documents again into a new folder"
        )
    if not json:
        print(f"{output} is whole: every block of every file matches its checksum")


def _report(opened: "Index", added: "Added | None", deleted: int, *, pruned: bool, json: bool) -> None:
    totals = {
        "index": opened.path,
        "generation": opened.generation,
        "documents": len(opened),
        "passages": opened.passages,
    }
    if json:
        print_json(
            totals
            | {
                "views": opened.settings.views,
                "code": opened.settings.passages.code,
                "compression": opened.compression,
                "dense_compression": opened.dense_compression,
                "deleted": deleted,
                "added": added,
            }
        )
        return
    if added is not None:
        print(
            f"{counted(added.added, 'document')} added, {added.updated:,} updated, "
            f"{added.unchanged:,} unchanged; {counted(added.passages, 'passage')}, "
            f"{counted(added.tokens, 'token')} indexed"
        )
        _list_skipped(added)
        if added.deleted:
            _list("deleted, because what replaces them cannot be read", list(added.deleted))
        if added.dropped_tokens:
            _list(f"{added.dropped_tokens:,} tokens dropped from", list(added.truncated_documents))
        if added.missing and not pruned:
            _list("not among these inputs, and kept (--prune deletes them)", list(added.missing))
    if deleted:
        print(f"{counted(deleted, 'document')} deleted")
    grid = table(None, "", "")
    for name, value in totals.items():
        grid.add_row(name, f"{value:,}" if isinstance(value, int) else safe(str(value)))
    grid.add_row("views", ", ".join(opened.settings.views))
    for name, value in _compressed(opened):
        grid.add_row(name, value)
    console().print(grid)
    for notice in filter(None, _notices(opened)):
        print(notice)


def _notices(opened: "Index") -> Iterator[str]:
    from unmask.search.syntax import code_notice

    for stored in (opened.compression, opened.dense_compression):
        yield stored.warning or "" if stored else ""
    yield code_notice(opened.settings.passages.code, opened.ids) or ""


def _compressed(opened: "Index") -> Iterator[tuple[str, str]]:
    """Rows of the report about vectors that are compressed."""
    error = "{:.4f} (1 - cosine); of what was learned from {:.4f}"
    if (stored := opened.compression) is not None:
        yield (
            "vectors",
            f"{stored.vectors:,} of {stored.vector_bytes} bytes, {stored.bits} bits per number, "
            f"{counted(stored.centroids, 'centroid')}",
        )
        yield "error", error.format(stored.error, stored.first_error)
    if (codes := opened.dense_compression) is not None:
        storage = "beside float32" if codes.floats else "and no float32"
        yield (
            "dense codes",
            f"{codes.vectors:,} of {codes.vector_bytes} bytes, {counted(codes.bits, 'bit')} per number, "
            f"{storage}",
        )
        yield "error of codes", error.format(codes.error, codes.first_error)


def _list_skipped(added: "Added") -> None:
    _list("skipped", [f"{name}: {reason}" for name, reason in added.skipped], len(added.skipped))


def _list(what: str, names: list[str], most: int = LISTED) -> None:
    if not names:
        return
    print(f"{len(names):,} {what}:" if not what[0].isdigit() else f"{what} {len(names):,} documents:")
    for name in names[:most]:
        print(f"  {safe(name)}")
    if len(names) > most:
        print(f"  and {len(names) - most:,} more; --json lists all")


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
        str,
        Parameter(
            help="the collection of Qdrant, the table of LanceDB or PostgreSQL, the index of OpenSearch"
        ),
    ] = "passages",
    view: Annotated[
        ExportedView | None,
        Parameter(
            help="whose vectors to write: dense, or multi_vector (parquet, lance, qdrant); default: dense "
            "where the index has it"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the passages of an index and their vectors for another vector store.

    Every passage gets its document, its characters in it, its text, the metadata and its vectors. What is
    written appears whole or not at all. No model is loaded. The API key of a Qdrant server is read from
    QDRANT_API_KEY.
    """
    from unmask.search.index import Index

    opened = Index.open(index)
    with progress("writing passages", opened.passages) as report:
        exported = opened.export(output, format, name=name, view=view, progress=report)
    if json:
        print_json(exported)
        return
    print(
        f"{exported.passages:,} passages of {exported.documents:,} documents are in {exported.output}, "
        f"with {exported.vectors:,} vectors of {exported.dimensions:,} numbers made by {exported.model.name}"
    )
    if exported.decoded:
        print("the index stores codes alone: vectors are what these stand for, not the model's numbers")
    if exported.views_left_out:
        print(f"not written: {', '.join(exported.views_left_out)}")
