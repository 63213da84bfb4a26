"""Predictions for a text, or for each line of a file or of standard input, streamed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT
from unmask.cli.lines import Inputs, LineReader, line_name, require_texts, survey
from unmask.cli.output import progress
from unmask.errors import InvalidRequest
from unmask.tasks.values import LongTexts
from unmask.text import Blank, Line

if TYPE_CHECKING:
    from unmask.loaded import Model

TextOption = Annotated[str | None, Parameter(help="a text; default: standard input, one text per line")]
FileOption = Annotated[str | None, Parameter(help="read this file instead, one text per line")]
LongTextsOption = Annotated[
    LongTexts,
    Parameter(
        name="--truncation",
        help="read a text longer than the model's maximum in windows, reject it, or truncate its end",
    ),
]
OverlapOption = Annotated[
    int | None, Parameter(name="--overlap-tokens", help="tokens that neighboring windows share; default: 64")
]

Predict = Callable[["Model", Sequence[str], Callable[[int], str]], Sequence[Any]]
"""Computes the predictions for some texts, whose names in error messages the last argument gives."""
Show = Callable[["Model", str, Any, Mapping[str, object]], None]
"""Prints the prediction for a text; the last argument is where it was read, for JSON."""


def predict_lines(
    text: str | None,
    file: str | None,
    *,
    field: str | None,
    blank: Blank,
    verb: str,
    load: Callable[[], "Model"],
    predict: Predict,
    show: Show,
) -> None:
    """Show the prediction for a text, or for each line as soon as its part of the input is computed.

    Raises:
        InvalidRequest: a text and a file are both given.
        TextError: a line is blank or invalid.
    """
    if text is not None and file is not None:
        raise InvalidRequest("give either a text or --file FILE")
    if text is not None and text != STANDARD_INPUT:
        if field is not None or blank != "error":
            raise InvalidRequest("--field and --blank are for lines; leave them out, or give --file FILE")
        loaded = load()
        (one,) = predict(loaded, [text], lambda _: "the text")
        show(loaded, text, one, {})
        return
    with Inputs([file or STANDARD_INPUT], field, blank, reread=False) as given:
        total = survey(given).texts if given.rereadable else 0
        loaded = load()
        reader = LineReader(given.lines())
        with progress(verb, total) as report:
            while part := reader.take():
                found = predict(loaded, [line.text for line in part], partial(line_name, part))
                for line, one in zip(part, found, strict=True):
                    show(loaded, line.text, one, _place(line))
                sys.stdout.flush()
                report(reader.done, total)
        require_texts(reader.done)


def _place(line: Line) -> dict[str, object]:
    return {"source": line.source, "line": line.number}
