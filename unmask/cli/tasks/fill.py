"""``unmask fill``: predictions for the mask tokens of a text, or of each line of a file."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.inputs import (
    Inputs,
    LineReader,
    encode_lines,
    line_name,
    require_texts,
    survey,
    warn_beyond_training,
)
from unmask.cli.items import text_reader
from unmask.cli.options import (
    RUN,
    BlankOption,
    FieldOption,
    JsonOption,
    ModelOption,
    RunOptions,
    TruncationOption,
    how_many,
)
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.cli.streams import STANDARD_INPUT
from unmask.errors import InvalidRequest
from unmask.text import Line, Truncation

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.fill import FilledMask


def fill(
    text: Annotated[
        str | None,
        Parameter(help="a text with mask tokens; - reads standard input, one text per line"),
    ] = None,
    *,
    file: Annotated[str | None, Parameter(help="read this file instead, one text per line")] = None,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    top: Annotated[int, how_many("number of predictions per mask")] = 5,
    truncation: TruncationOption = "error",
    blank: BlankOption = "error",
    field: FieldOption = None,
    json: JsonOption = False,
) -> None:
    """Predict the words at the mask tokens of a text, such as [MASK], or of every line of a file.

    Lines are streamed, so a file may have any size. With --json, each text gives one JSON object.
    """
    if (text is None) == (file is None):
        raise InvalidRequest("give either a text or --file FILE")
    source = STANDARD_INPUT if text == STANDARD_INPUT else file
    if source is None:
        assert text is not None
        if field is not None or blank != "error":
            raise InvalidRequest("--field and --blank are for lines; leave them out, or give --file FILE")
        loaded = _load(run, model, top)
        _show(loaded, text, loaded.fill(text, top_k=top, truncation=truncation), {}, json)
        return
    with Inputs([source], text_reader(None, field, blank), reread=False) as given:
        total = survey(given).texts if given.rereadable else 0
        loaded = _load(run, model, top)
        _fill_lines(loaded, LineReader(given.lines()), total, top=top, truncation=truncation, json=json)


def _load(run: RunOptions, model: str, top: int) -> "Model":
    loaded = run.load(model)
    words = loaded.spec.embedding.vocabulary
    if not 1 <= top <= words:
        raise InvalidRequest(f"--top is {top}; it can be 1 to {words}")
    return loaded


def _fill_lines(
    loaded: "Model", reader: LineReader, total: int, *, top: int, truncation: Truncation, json: bool
) -> None:
    """Show the predictions of each line as soon as its part of the input is computed."""
    from unmask.tasks.fill import of_encodings

    longest = 0
    with progress("filling", total) as report:
        while part := reader.take():
            encodings = encode_lines(loaded, part, truncation)
            longest = max(longest, *map(len, encodings))
            ready = of_encodings(loaded.reader, encodings, top_k=top, name=partial(line_name, part))
            filled = ready(loaded.engine)
            for line, masks in zip(part, filled, strict=True):
                _show(loaded, line.text, masks, _place(line), json)
            sys.stdout.flush()
            report(reader.done, total)
    require_texts(reader.done)
    warn_beyond_training(loaded, longest)


def _place(line: Line) -> dict[str, object]:
    return {"source": line.source, "line": line.number}


def _show(
    loaded: "Model", text: str, masks: "Sequence[FilledMask]", place: Mapping[str, object], json: bool
) -> None:
    """Print the predictions of one text; ``place`` is where it was read, for JSON."""
    if json:
        named = {"model": loaded.name, "revision": loaded.revision, **place}
        print_json({**named, "text": text, "masks": masks})
        return
    for mask in masks:
        before, after = text[max(0, mask.start - 40) : mask.start], text[mask.end : mask.end + 40]
        console().print(f"{safe(before)}[bold]___[/bold]{safe(after)}")
        shown = table(None, "probability", "word", "token", right=("probability",))
        for one in mask.predictions:
            shown.add_row(f"{one.probability:.4f}", safe(one.text), safe(one.piece))
        console().print(shown)
