"""``unmask embed``: texts from files or standard input to embeddings in JSONL or numpy."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.embed_rows import RowFormat, fingerprint, format_of
from unmask.cli.input import STANDARD_INPUT, standard_input
from unmask.cli.options import (
    CompatOption,
    DtypeOption,
    JsonOption,
    KernelOption,
    ModelOption,
    RevisionOption,
    TruncationOption,
)
from unmask.cli.output import print_json, progress
from unmask.errors import EmptyText, InvalidRequest, InvalidText
from unmask.model.spec import PooledVector, PoolingMode
from unmask.resume import ResumableFile
from unmask.tasks import Progress
from unmask.text import Blank, Encoding, Line, Truncation, read_lines

if TYPE_CHECKING:
    from unmask.loaded import Model

TEXTS_PER_PART = 2048
"""Texts between two entries of the journal: what a stop can cost, and what is sorted by length together."""


@dataclass(frozen=True)
class CutText:
    """One text that was longer than the model reads."""

    source: str
    line: int
    original_tokens: int
    kept_tokens: int


@dataclass(frozen=True)
class EmbedSummary:
    """What one run did."""

    model: str
    revision: str | None
    texts: int
    resumed_texts: int
    """Of these, how many an earlier run had done."""
    tokens: int
    width: int
    seconds: float
    cut: tuple[CutText, ...]
    output: str | None


def embed(
    inputs: Annotated[
        list[str] | None,
        Parameter(
            name="inputs",
            negative="",
            help="files with one text a line; - or none reads standard input",
        ),
    ] = None,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="file to write, .jsonl or .npy; none prints JSONL"),
    ] = None,
    model: ModelOption = "default",
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    compat: CompatOption = "published",
    kernel: KernelOption = None,
    truncation: TruncationOption = "error",
    blank: Annotated[
        Blank, Parameter(help="refuse lines without text, or leave them out (JSONL only)")
    ] = "error",
    field: Annotated[
        str | None, Parameter(help="read each line as JSON and take the text under this key")
    ] = None,
    pooling: Annotated[
        PoolingMode | None, Parameter(help="instead of the pooling that the checkpoint says")
    ] = None,
    unit_length: Annotated[
        bool | None,
        Parameter(help="divide by the length or not, instead of what the checkpoint says"),
    ] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="replace a finished output")] = False,
    restart: Annotated[bool, Parameter(negative="", help="throw away what a stopped run had done")] = False,
    json: JsonOption = False,
) -> None:
    """Embed texts, one a line.

    All texts are checked before the first is embedded. With --output a run that was stopped goes on
    where it was when the same command is given again, and the file appears when it is whole.
    """
    form = format_of(output)
    if blank == "skip" and form is RowFormat.NUMPY:
        raise InvalidRequest("--blank skip would shift the rows of a .npy file; write .jsonl instead")
    lines = [line for name in inputs or [STANDARD_INPUT] for line in _read(name, field, blank)]
    if not lines:
        raise EmptyText("there is no text in the input; give at least one line")

    from unmask.loaded import load

    loaded = load(model, dtype=dtype, revision=revision, kernel=kernel, compat=compat)
    head = loaded.embedding_head(pooling, unit_length)
    width = head.width(loaded.spec)
    tokens, cut = _check(loaded, lines, truncation)
    start = time.perf_counter()
    with ExitStack() as stack:
        target = None
        if output is not None:
            settings = (form.value, dtype, compat, kernel, head, truncation)
            target = stack.enter_context(
                ResumableFile(
                    output,
                    fingerprint(loaded.checkpoint, lines, settings),
                    len(lines),
                    header=form.header(len(lines), width),
                    overwrite=overwrite,
                    restart=restart,
                )
            )
        resumed = target.rows_done if target else 0
        report = stack.enter_context(progress("embedding", len(lines)))
        for content, count in _rows(
            loaded, head, lines, begin=resumed, truncation=truncation, form=form, report=report
        ):
            if target:
                target.append(content, count)
            else:
                sys.stdout.buffer.write(content)
                sys.stdout.buffer.flush()
    _report(
        EmbedSummary(
            model=loaded.name,
            revision=loaded.revision,
            texts=len(lines),
            resumed_texts=resumed,
            tokens=tokens,
            width=width,
            seconds=time.perf_counter() - start,
            cut=tuple(cut),
            output=str(output) if output else None,
        ),
        json,
    )


def _rows(
    loaded: "Model",
    head: PooledVector,
    lines: list[Line],
    *,
    begin: int,
    truncation: Truncation,
    form: RowFormat,
    report: Progress,
) -> Iterator[tuple[bytes, int]]:
    """What is to be written, part by part from text ``begin`` on, and how many rows it is."""
    for first in range(begin, len(lines), TEXTS_PER_PART):
        part = lines[first : first + TEXTS_PER_PART]
        encodings = _encode(loaded, part, truncation)
        embeddings_SE = loaded.embed_encodings(
            encodings,
            head,
            progress=partial(_forward, report, first, len(lines)),
            name=partial(_name, part),
        )
        yield form.rows(part, encodings, embeddings_SE), len(part)


def _name(lines: list[Line], index: int) -> str:
    return str(lines[index])


def _forward(report: Progress, first: int, total: int, done: int, _: int) -> None:
    report(first + done, total)


def _read(name: str, field: str | None, blank: Blank) -> Iterator[Line]:
    if name == STANDARD_INPUT:
        yield from read_lines(standard_input(), "<stdin>", field=field, blank=blank)
        return
    try:
        with open(name, "rb") as stream:
            yield from read_lines(stream, name, field=field, blank=blank)
    except OSError as error:
        raise InvalidText(f"cannot read {name}: {error.strerror}") from None


def _encode(loaded: "Model", lines: list[Line], truncation: Truncation) -> list[Encoding]:
    return loaded.tokenize([line.text for line in lines], truncation=truncation, name=partial(_name, lines))


def _check(loaded: "Model", lines: list[Line], truncation: Truncation) -> tuple[int, list[CutText]]:
    """Tokenize everything once: a fault in the last line must not cost the work on all others."""
    tokens, cut = 0, []
    for first in range(0, len(lines), TEXTS_PER_PART):
        part = lines[first : first + TEXTS_PER_PART]
        for line, encoding in zip(part, _encode(loaded, part, truncation), strict=True):
            tokens += len(encoding)
            if encoding.truncated_tokens:
                cut.append(CutText(line.source, line.number, encoding.original_tokens, len(encoding)))
    return tokens, cut


def _report(summary: EmbedSummary, json: bool) -> None:
    """To standard output, unless the embeddings themselves went there."""
    stream = sys.stdout if summary.output else sys.stderr
    if json:
        print_json(summary, stream)
        return
    where = f" in {summary.output}" if summary.output else ""
    resumed = f", {summary.resumed_texts:,} of them by an earlier run" if summary.resumed_texts else ""
    print(
        f"{summary.texts:,} texts{resumed}, {summary.tokens:,} tokens, {summary.seconds:.1f} s, "
        f"{summary.width} numbers each{where}",
        file=stream,
    )
    if summary.cut:
        longest = max(summary.cut, key=lambda one: one.original_tokens)
        print(
            f"{len(summary.cut):,} texts were cut to {longest.kept_tokens} tokens; the longest, line "
            f"{longest.line} of {longest.source}, had {longest.original_tokens}",
            file=stream,
        )
