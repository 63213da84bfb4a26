"""``unmask embed``: embed texts from files or standard input, to JSONL, numpy or Parquet."""

import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.progress import counted
from unmask.base.resume import ResumableFile
from unmask.cli.inputs import Inputs, LineReader, LongestText, Survey, line_name, require_texts, survey
from unmask.cli.items import format_of, text_reader
from unmask.cli.options import (
    RUN,
    BlankOption,
    FieldOption,
    FormatOption,
    JsonOption,
    ModelOption,
    PoolingOption,
    RunOptions,
    TruncationOption,
)
from unmask.cli.output import beside, on_terminal, print_json, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.bulk import BULK, BulkOptions, run_bulk, task_settings
from unmask.cli.tasks.embed_rows import (
    FORMATS,
    NUMBERS,
    Preview,
    RowFormat,
    extension_of,
    rows_of_every_output,
)
from unmask.errors import InvalidRequest, InvalidText, TextTooLong
from unmask.tasks import Progress, every_output
from unmask.tasks.embed import Precision, quantize, quantized_width
from unmask.tasks.prompts import chosen_prompt
from unmask.text import Encoding, Line, Truncation
from unmask.text.rows import TABLES
from unmask.weights.read.fingerprint import fingerprint

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.spec import PooledVector


LISTED = 1000
"""Truncated texts that the summary lists; all of them are counted."""


PARTS_CHECKED = 10
"""Parts that are searched for more overlong texts after the first one is found."""


@dataclass(frozen=True)
class TruncatedText:
    """One text that was longer than the model's maximum."""

    source: str
    line: int
    original_tokens: int | None
    """None if they were not all counted."""
    kept_tokens: int


@dataclass(frozen=True)
class EmbedSummary:
    """Summary of one run."""

    model: str
    revision: str | None
    texts: int
    resumed_texts: int
    """How many of these an earlier run had embedded."""
    tokens: int
    """Tokens of the texts that this run embedded."""
    width: int
    seconds: float
    truncated_texts: int
    truncated: tuple[TruncatedText, ...]
    """The first `LISTED` of them."""
    output: str | None


@dataclass
class Tally:
    """Counters of a run."""

    tokens: int = 0
    truncated_texts: int = 0
    truncated: list[TruncatedText] = field(default_factory=list)

    def add(self, line: Line, encoding: Encoding) -> None:
        """Count one text."""
        self.tokens += len(encoding)
        if encoding.truncated_tokens:
            self.truncated_texts += 1
            if len(self.truncated) < LISTED:
                total = encoding.original_tokens if encoding.counted_whole else None
                self.truncated.append(TruncatedText(line.source, line.number, total, len(encoding)))


class EmbedRun:
    """Embeds the texts of a reader, part by part."""

    def __init__(
        self,
        loaded: "Model",
        head: "PooledVector",
        reader: LineReader,
        *,
        survey: Survey | None,
        truncation: Truncation,
        form: RowFormat,
        prompt: str = "",
        precision: Precision = "float32",
    ) -> None:
        self.loaded, self.head, self.reader, self.survey = loaded, head, reader, survey
        self.truncation: Truncation = truncation
        self.form, self.prompt, self.precision = form, prompt, precision
        self.total = survey.texts if survey else 0
        """0 if unknown."""
        self.metrics, self.longest = Tally(), LongestText()

    def fingerprint(self, of_settings: str, truncation: Truncation, rows: int) -> str:
        """Fingerprint of the first rows; the reader advances to their end."""
        self.reader.skip_to(rows)
        parts = (of_settings, truncation, self.reader.digest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def rows(self, report: Progress) -> Iterator[tuple[bytes, int]]:
        """Output bytes, part by part, with the number of rows in each.

        Raises:
            TextError: a text is too long or has no words.
        """
        while True:
            first, part = self.reader.done, self.reader.take()
            if not part:
                return
            encodings = self._encode(part)
            for line, encoding in zip(part, encodings, strict=True):
                self.metrics.add(line, encoding)
            done = partial(_forward, report, first, self.total)
            yield self._computed(part, encodings, done), len(part)

    def _computed(self, part: list[Line], encodings: list[Encoding], done: Progress) -> bytes:
        """The output bytes of one part."""
        embeddings_SE = self.loaded.embed_encodings(
            encodings, self.head, prompt=self.prompt, progress=done, name=partial(line_name, part)
        )
        return self.form.rows(part, encodings, quantize(embeddings_SE, self.precision))

    def _encode(self, part: list[Line]) -> list[Encoding]:
        try:
            return self._encoded(part, self.truncation)
        except TextTooLong as error:
            raise self._with_others(error, part) from None

    def _encoded(self, part: list[Line], truncation: Truncation) -> list[Encoding]:
        texts = [line.text for line in part]
        return self.longest.encode(self.loaded, texts, truncation, partial(line_name, part), self.prompt)

    def _with_others(self, error: TextTooLong, part: list[Line]) -> TextTooLong:
        """The error of the first overlong text, with the number of overlong texts after it."""
        long, checked, parts = 0, 0, 1
        while part:
            overlong = [encoding.truncated_tokens > 0 for encoding in self._encoded(part, "end")]
            checked += len(overlong) - (0 if long else overlong.index(True))
            long += sum(overlong)
            part = self.reader.take() if parts < PARTS_CHECKED else []
            parts += 1
        if long == 1:
            return error
        fault, _, way_out = str(error).partition("; ")
        return TextTooLong(
            f"{fault}, and {long - 1:,} of the {checked - 1:,} lines after it are also too long; {way_out}",
            original_tokens=error.original_tokens,
            max_tokens=error.max_tokens,
        )


class EveryOutputRun(EmbedRun):
    """Computes all outputs of a checkpoint that has three, see `unmask.tasks.every_output`."""

    def _computed(self, part: list[Line], encodings: list[Encoding], done: Progress) -> bytes:
        ready = every_output.of_encodings(self.loaded.reader, encodings, partial(line_name, part))
        outputs = ready(self.loaded.engine, progress=done)
        return rows_of_every_output(part, encodings, outputs, self.loaded.tokenizer)


def embed(
    inputs: Annotated[
        list[str] | None,
        Parameter(
            name="inputs",
            negative="",
            help="files with a text on each line, or in a column of JSON lines, CSV, TSV or Parquet; - or no "
            "file reads standard input",
        ),
    ] = None,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="file to write: .jsonl, .npy, .npz, .parquet; default: print JSONL",
        ),
    ] = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    truncation: TruncationOption = "error",
    blank: BlankOption = "error",
    field: FieldOption = None,
    format: FormatOption = None,
    pooling: PoolingOption = None,
    normalize: Annotated[
        bool | None,
        Parameter(help="normalize embeddings to unit length, or not; default: as the checkpoint specifies"),
    ] = None,
    prompt: Annotated[
        str | None, Parameter(help='text to put before every text; "" for none; default: the checkpoint\'s')
    ] = None,
    prompt_name: Annotated[
        str | None, Parameter(help="the checkpoint's prompt of this name instead, such as query")
    ] = None,
    truncate_dim: Annotated[
        int | None, Parameter(help="keep only the first dimensions, for models trained that way")
    ] = None,
    precision: Annotated[
        Literal["float32", "binary", "ubinary"],
        Parameter(help="of the embeddings; binary keeps one bit for each number, eight in a byte"),
    ] = "float32",
    all_outputs: Annotated[
        bool,
        Parameter(
            negative="", help="BGE-M3: weights of words and a vector for each token too, as JSON lines"
        ),
    ] = False,
    bulk: BulkOptions = BULK,
    overwrite: Annotated[bool, Parameter(negative="", help="replace a finished output")] = False,
    restart: Annotated[bool, Parameter(negative="", help="discard the progress of a stopped run")] = False,
    json: JsonOption = False,
) -> None:
    """Embed texts: the lines of files, or a column of tables.

    Input of any size is streamed. A line that cannot be embedded stops the run with an error that names the
    line; what has been written to --output is kept. To resume a stopped run, give the same command again. The
    output file appears when it is complete.

    With --engine, several processes embed shards of the files, and --output is a folder.
    """
    bulk.check()
    if bulk.engine is not None:
        if all_outputs:
            raise InvalidRequest("--all-outputs is not built for --engine; leave one of them out")
        if format is not None:
            raise InvalidRequest("--engine knows formats by the endings of names; leave --format out")
        from unmask.bulk import BatchEmbedder

        task = BatchEmbedder(
            **task_settings(model, run, field, blank),
            truncation=truncation,
            pooling=pooling,
            normalize=normalize,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        run_bulk(task, inputs or [], output, bulk, overwrite=overwrite, restart=restart, json=json)
        return
    extension = extension_of(output)
    if all_outputs:
        changed = (pooling, normalize, prompt, prompt_name, truncate_dim) != (None,) * 5
        if extension != ".jsonl" or changed or precision != "float32":
            raise InvalidRequest(
                "--all-outputs writes JSON lines of what the checkpoint defines; write to .jsonl, and leave "
                "out the options of pooling, prompts and precision"
            )
    if blank == "skip" and extension == ".npy":
        raise InvalidRequest(
            "--blank skip would shift the rows of a .npy file; write .jsonl, .npz or .parquet instead"
        )
    names = inputs or [STANDARD_INPUT]
    for name in names:
        format_of(name, format, ("lines", *TABLES))
    with Inputs(
        names,
        text_reader(format, field, blank),
        reread=output is not None,
        beside=None if output is None else output.parent,
    ) as lines:
        surveyed = survey(lines) if lines.rereadable else None
        if surveyed is not None:
            require_texts(surveyed.texts)

        loaded = run.load(model)
        head = loaded.embedding_head(pooling, normalize, truncate_dim)
        before = chosen_prompt(head, prompt, prompt_name, loaded.name)
        width = quantized_width(head.width(loaded.spec), precision)
        if all_outputs:
            loaded.checkpoint.token_layers()  # refuses a checkpoint without them before the first text
            _, before = every_output.pooling_and_prompt(loaded.reader)
        form_of = Preview if output is None and on_terminal() and not all_outputs else FORMATS[extension]
        form = form_of(lines.sources, width, NUMBERS[precision])
        work = (EveryOutputRun if all_outputs else EmbedRun)(
            loaded,
            head,
            LineReader(lines.lines()),
            survey=surveyed,
            truncation=truncation,
            form=form,
            prompt=before,
            precision=precision,
        )
        start = time.perf_counter()
        if output is None:
            resumed = _print(work)
        else:
            settings = (extension, run.dtype, run.compat, run.kernel, head, before, precision, all_outputs)
            resumed = _write(work, output, settings, overwrite=overwrite, restart=restart)
    work.longest.warn()
    _report(_summary(work, resumed, time.perf_counter() - start, output), json)


def _print(run: EmbedRun) -> int:
    """Write rows to standard output as soon as they are computed."""
    with progress("embedding", run.total) as report:
        for content, _ in run.rows(report):
            with beside(report):
                sys.stdout.buffer.write(content)
                sys.stdout.buffer.flush()
    require_texts(run.reader.done)
    return 0


def _write(run: EmbedRun, output: Path, settings: object, *, overwrite: bool, restart: bool) -> int:
    """Write rows to a file; return how many an earlier run had written."""
    assert run.survey is not None
    header = run.form.header(run.survey.texts)
    of_settings = fingerprint(run.loaded.checkpoint, (settings, header))
    # Rows of a run that rejects long texts are valid for a run that truncates, but not the reverse.
    compatible = [partial(run.fingerprint, of_settings, "error")] if run.truncation == "end" else []
    with ExitStack() as stack:
        target = stack.enter_context(
            ResumableFile(
                output,
                partial(run.fingerprint, of_settings, run.truncation),
                run.survey.texts,
                compatible=compatible,
                header=header,
                finish=run.form.finish,
                overwrite=overwrite,
                restart=restart,
            )
        )
        resumed = target.rows_done
        report = stack.enter_context(progress("embedding", run.total))
        for content, count in run.rows(report):
            target.append(content, count)
        if run.reader.digest() != run.survey.digest:
            raise InvalidText("the input changed while it was read; run the command again")
    return resumed


def _summary(run: EmbedRun, resumed: int, seconds: float, output: Path | None) -> EmbedSummary:
    return EmbedSummary(
        model=run.loaded.name,
        revision=run.loaded.revision,
        texts=run.reader.done,
        resumed_texts=resumed,
        tokens=run.metrics.tokens,
        width=run.form.width,
        seconds=seconds,
        truncated_texts=run.metrics.truncated_texts,
        truncated=tuple(run.metrics.truncated),
        output=str(output) if output else None,
    )


def _report(summary: EmbedSummary, json: bool) -> None:
    """Print to standard output, unless the embeddings were printed there."""
    stream = sys.stdout if summary.output else sys.stderr
    if json:
        print_json(summary, stream)
        return
    where = f" in {summary.output}" if summary.output else ""
    resumed = f", {summary.resumed_texts:,} of them by an earlier run" if summary.resumed_texts else ""
    print(
        f"{counted(summary.texts, 'text')}{resumed}, {counted(summary.tokens, 'token')}, "
        f"{summary.seconds:.1f} s, "
        f"{summary.width} dimensions{where}",
        file=stream,
    )
    if summary.truncated:
        first = summary.truncated[0]
        total = "more than were counted" if first.original_tokens is None else f"{first.original_tokens:,}"
        print(
            f"{counted(summary.truncated_texts, 'text')} {'was' if summary.truncated_texts == 1 else 'were'} "
            f"truncated to {first.kept_tokens} tokens; the first, "
            f"line {first.line} of {first.source}, had {total}",
            file=stream,
        )


def _forward(report: Progress, first: int, total: int, done: int, _: int) -> None:
    report(first + done, total)
