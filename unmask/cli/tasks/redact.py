"""``unmask redact``: personal data replaced in a text, or in every input of a file."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

from cyclopts import Parameter

from unmask.base.arguments import comma_separated
from unmask.base.files import check_can_write, read_regular, whole_file
from unmask.base.progress import counted
from unmask.cli.inputs import Inputs, LineReader, line_name
from unmask.cli.items import Columns, Item, format_of, item_reader, text_of
from unmask.cli.options import RUN, FieldOption, FormatOption, JsonOption, RunOptions, listed
from unmask.cli.output import json_line, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import TextOption, typed
from unmask.cli.tasks.tag import ADAPTER, BY_LABEL
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.tasks.classify import THRESHOLD
from unmask.tasks.redact import NOTE, Redaction, Redactor, Replacement, entity_types, redacted
from unmask.text import Line
from unmask.text.lines import is_compressed
from unmask.text.row_copies import check_copy, rewrite_rows
from unmask.text.rows import TABLES, Format

if TYPE_CHECKING:
    from unmask.base.progress import Progress
    from unmask.models.load import Model


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RedactedFile:
    """What is read, and where the redacted copy goes."""

    file: Annotated[str | None, Parameter(help="read this file instead of standard input")] = None
    format: FormatOption = None
    field: FieldOption = None
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="write the redacted copy to this file, in the format of the input; default: print it",
        ),
    ] = None
    overwrite: Annotated[
        bool, Parameter(negative="", help="replace the output if it exists, also if it is the input")
    ] = False

    def check(self) -> tuple[str, Format]:
        """The name and the format of the input.

        Raises:
            InvalidRequest: the formats of the input and the output differ, or the input cannot be copied.
            OutputError: the output exists, or cannot be written.
        """
        name = self.file or STANDARD_INPUT
        plain = "" if name == STANDARD_INPUT else name
        form = format_of(plain, self.format, ("lines", *TABLES))
        form = "jsonl" if form == "lines" and self.field is not None else form
        if self.output is not None:
            check_can_write(self.output)
            check_copy(self.output, [form])
            if self.output.exists() and not self.overwrite:
                raise OutputError(f"{self.output} exists already; name another file, or give --overwrite")
        elif form == "parquet" or is_compressed(plain):
            raise InvalidRequest(f"{plain} is no text to be printed; name a file for the copy with -o")
        return name, form


NO_FILE = RedactedFile()


@dataclass
class _Job:
    """The redactor, the model that finds entities for it, and what was replaced."""

    redactor: Redactor
    model: "Model | None"
    options: dict[str, Any]
    as_json: bool
    with_text: bool
    """Whether JSON has the redacted texts, which are written nowhere else."""
    counts: Counter[str] = field(default_factory=Counter)
    """The replaced spans of each label."""
    texts: int = 0
    changed: int = 0

    def redactions(self, items: Sequence[Item], report: "Progress | None" = None) -> list[Redaction]:
        """The redacted texts, which are printed as JSON if that is asked for."""
        redactions = redacted(
            self.redactor,
            [text_of(item) for item in items],
            self.model,
            name=partial(line_name, items),
            progress=report,
            **self.options,
        )
        for item, redaction in zip(items, redactions, strict=True):
            self.counts.update(span.label for span in redaction.spans)
            self.changed += bool(redaction.spans)
            if self.as_json and (self.with_text or redaction.spans):
                text = {"text": redaction.text} if self.with_text else {}
                print(json_line({**(item.place or {}), **text, "spans": redaction.spans}), end="")
        self.texts += len(items)
        return redactions

    def changes(self, lines: Iterator[Line], report: "Progress") -> Iterator[tuple[int, str]]:
        """The number and the new text of each input that changes, part by part."""
        reader = LineReader(lines)
        while part := reader.take():
            items = [cast("Item", line) for line in part]
            for item, redaction in zip(items, self.redactions(items), strict=True):
                if redaction.spans:
                    yield item.number, redaction.text
            report(reader.done, 0)

    def finish(self, output: Path | None) -> None:
        """Say what was replaced, and that it is not everything."""
        if self.as_json:
            summary = {"kind": "summary", "texts": self.texts, "changed": self.changed}
            print(json_line({**summary, "spans": self.counts, "output": output, "note": NOTE}), end="")
            return
        labels = ", ".join(f"{count:,} {label}" for label, count in self.counts.most_common()) or "nothing"
        place = "" if output is None else f", in {output}"
        texts = f"{self.changed:,} of {counted(self.texts, 'text')} changed{place}"
        print(f"{texts}; replaced: {labels}; {NOTE}", file=sys.stderr if output is None else sys.stdout)


def redact(
    text: TextOption = None,
    *,
    source: RedactedFile = NO_FILE,
    model: Annotated[
        str | None,
        Parameter(
            name=["--model", "-m"], help="a tagger, whose entities are replaced too, such as default (names)"
        ),
    ] = None,
    labels: Annotated[
        str | None,
        Parameter(
            help="types of entities, separated by commas (those that hold commas in double quotes), "
            "for the default model's adapter entities, or a checkpoint of GLiNER"
        ),
    ] = None,
    threshold: Annotated[
        float, Parameter(help="with --labels, what probability an entity must exceed")
    ] = THRESHOLD,
    only: Annotated[list[str] | None, listed("replace these labels alone, such as EMAIL or PER")] = None,
    keep: Annotated[list[str] | None, listed("leave these labels as they are")] = None,
    replacement: Annotated[
        Replacement, Parameter(help="put the label in place, or a pseudonym, the same for the same value")
    ] = "mask",
    secret_file: Annotated[
        Path | None, Parameter(help="a file with a secret, for pseudonyms that agree between runs")
    ] = None,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Replace personal data in a text, or in every input of a file: addresses, numbers, names.

    Mail and web addresses, IP addresses, numbers of cards, bank accounts and telephones are found by their
    form and their check digits; with --model, also the entities that a tagger finds. The copy is in the
    format of the input (lines, JSON lines, JSON, CSV, TSV, Parquet; --field names the column), and every
    other character is as it was. With --json, one object for each input with the offsets of what was
    replaced, in both texts, then a summary; with -o, for each input that changed. No method finds everything.
    """
    if model is None and (labels is not None or threshold != THRESHOLD):
        raise InvalidRequest("--labels and --threshold are for a model; name it with --model")
    if labels is None and threshold != THRESHOLD:
        raise InvalidRequest("--threshold is for --labels; give labels, or leave it out")
    names = None if labels is None else comma_separated(labels)
    alone = text is not None and text != STANDARD_INPUT
    if alone and source != NO_FILE:
        raise InvalidRequest("a text is given, and options of a file; leave one of them out")
    name, form = (None, None) if alone else source.check()
    if run.special_tokens is None:  # a text must not tell the model what to read
        run = replace(run, special_tokens="text")
    loaded = None if model is None else run.load(model, ADAPTER if names is None else BY_LABEL)
    types = () if loaded is None else entity_types(loaded.reader, names)
    redactor = Redactor(types, only=only, keep=keep, replacement=replacement, secret=_secret(secret_file))
    options = {} if names is None else {"labels": names, "threshold": threshold}
    job = _Job(redactor, loaded, options, json, source.output is None)
    if name is None or form is None:
        assert text is not None
        (redaction,) = job.redactions([typed(text, text)])
        if not json:
            print(redaction.text)
            job.finish(None)
    elif source.output is None:
        _copy(job, name, form, source, None if json else sys.stdout.buffer)
        job.finish(None)
    else:
        with whole_file(source.output) as partial_file, partial_file.open("wb") as file:
            _copy(job, name, form, source, file)
        job.finish(source.output)


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    return read_regular(path, InvalidRequest).decode("utf-8", "surrogateescape").strip()


def _copy(job: _Job, name: str, form: Format, source: RedactedFile, file: BinaryIO | None) -> None:
    """Write the copy, or without a file go through the inputs alone."""
    column = source.field or "text"
    read = item_reader(form, Columns(None if form == "lines" else column), "skip")
    beside = None if source.output is None else source.output.parent
    with (
        Inputs([name], read, reread=True, beside=beside) as inputs,
        progress("texts redacted", 0) as report,
    ):
        changes = job.changes(inputs.lines(), report)
        if file is None:
            for _ in changes:
                pass
            return
        if name == STANDARD_INPUT or not Path(name).is_file():
            changes = iter(list(changes))  # a stream has one position; a file is opened twice
        for opened in inputs.streams():
            rewrite_rows(opened, form, column, changes, file)
        for _ in changes:
            raise InvalidText(f"{inputs.sources[0]} changed while it was read; run the command again")
