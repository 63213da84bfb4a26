"""``unmask embed``: texts from files or standard input to embeddings in JSONL or numpy."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.embed_input import Inputs, LineReader, require_texts, survey
from unmask.cli.embed_rows import RowFormat, fingerprint, format_of
from unmask.cli.embed_run import EmbedRun, TruncatedText
from unmask.cli.input import STANDARD_INPUT
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TruncationOption
from unmask.cli.output import print_json, progress
from unmask.errors import InvalidRequest, InvalidText
from unmask.model.spec import PoolingMode
from unmask.resume import ResumableFile
from unmask.text import Blank


@dataclass(frozen=True)
class EmbedSummary:
    """What one run did."""

    model: str
    revision: str | None
    texts: int
    resumed_texts: int
    """Of these, how many an earlier run had done."""
    tokens: int
    """Tokens of the texts that this run embedded."""
    width: int
    seconds: float
    truncated_texts: int
    truncated: tuple[TruncatedText, ...]
    """The first of them, as many as `LISTED` says."""
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
    run: RunOptions = RUN,
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
    normalize: Annotated[
        bool | None,
        Parameter(help="divide embeddings by their length or not, instead of what the checkpoint says"),
    ] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="replace a finished output")] = False,
    restart: Annotated[bool, Parameter(negative="", help="throw away what a stopped run had done")] = False,
    json: JsonOption = False,
) -> None:
    """Embed texts, one a line.

    Input of any size is read as a stream. A line that cannot be embedded stops the run with its number; what
    was written to --output until then is kept. A run that was stopped resumes when the same command is given
    again, and the file appears when it is whole.
    """
    form = format_of(output)
    if blank == "skip" and form is RowFormat.NUMPY:
        raise InvalidRequest("--blank skip would shift the rows of a .npy file; write .jsonl instead")
    with Inputs(
        inputs or [STANDARD_INPUT],
        field,
        blank,
        reread=output is not None,
        beside=None if output is None else output.parent,
    ) as given:
        found = survey(given) if given.rereadable else None
        if found is not None:
            require_texts(found.texts)

        loaded = run.load(model)
        head = loaded.embedding_head(pooling, normalize)
        work = EmbedRun(
            loaded, head, LineReader(given.lines()), survey=found, truncation=truncation, form=form
        )
        start = time.perf_counter()
        if output is None:
            resumed = _print(work)
        else:
            settings = (form.value, run.dtype, run.compat, run.kernel, head)
            resumed = _write(work, output, settings, overwrite=overwrite, restart=restart)
    work.warn()
    _report(
        EmbedSummary(
            model=loaded.name,
            revision=loaded.revision,
            texts=work.reader.done,
            resumed_texts=resumed,
            tokens=work.metrics.tokens,
            width=work.width,
            seconds=time.perf_counter() - start,
            truncated_texts=work.metrics.truncated_texts,
            truncated=tuple(work.metrics.truncated),
            output=str(output) if output else None,
        ),
        json,
    )


def _print(run: EmbedRun) -> int:
    """Rows to standard output, as soon as they are there."""
    with progress("embedding", run.total) as report:
        for content, _ in run.rows(report):
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
    require_texts(run.reader.done)
    return 0


def _write(run: EmbedRun, output: Path, settings: object, *, overwrite: bool, restart: bool) -> int:
    """Rows to a file; how many of them an earlier run had written."""
    assert run.survey is not None
    header = run.form.header(run.survey.texts, run.width)
    of_settings = fingerprint(run.loaded.checkpoint, (settings, header))
    # Rows that were made while longer texts were refused are those of a run that truncates, not the reverse.
    compatible = [partial(run.fingerprint, of_settings, "error")] if run.truncation == "end" else []
    with ExitStack() as stack:
        target = stack.enter_context(
            ResumableFile(
                output,
                partial(run.fingerprint, of_settings, run.truncation),
                run.survey.texts,
                compatible=compatible,
                header=header,
                overwrite=overwrite,
                restart=restart,
            )
        )
        resumed = target.rows_done
        report = stack.enter_context(progress("embedding", run.total))
        for content, count in run.rows(report):
            target.append(content, count)
        if run.reader.digest() != run.survey.digest:
            raise InvalidText("the input changed while it was read; give the command again")
    return resumed


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
    if summary.truncated:
        first = summary.truncated[0]
        total = "more than were counted" if first.original_tokens is None else f"{first.original_tokens:,}"
        print(
            f"{summary.truncated_texts:,} texts were truncated to {first.kept_tokens} tokens; the first, "
            f"line {first.line} of {first.source}, had {total}",
            file=stream,
        )
