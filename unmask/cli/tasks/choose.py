"""``unmask choose``: the choice that fits a question, or each line of a file with a question and choices."""

import json as json_format
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from cyclopts import Parameter

from unmask.base.optional import require
from unmask.cli.items import Columns, Item, item_reader
from unmask.cli.options import RUN, BlankOption, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, safe
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import (
    FILE,
    FileOptions,
    Given,
    Job,
    LongTextsOption,
    OverlapOption,
    named,
    predict_items,
    predict_text,
)
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.tasks import Progress
from unmask.text.lines import Stream
from unmask.text.rows import parquet_rows

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.choose import Choice


def choose(
    question: Annotated[
        str | None, Parameter(help="a question; default: standard input, one JSON object per line")
    ] = None,
    *,
    choice: Annotated[
        list[str] | None,
        Parameter(negative="", help="a choice of the question; repeat it for each choice"),
    ] = None,
    file: Annotated[
        str | None, Parameter(help="read this file instead, one JSON object per line, or Parquet")
    ] = None,
    model: ModelOption,
    run: RunOptions = RUN,
    question_field: Annotated[str, Parameter(help="the key or column of the question")] = "question",
    choices_field: Annotated[str, Parameter(help="the key or column of the list of choices")] = "choices",
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    blank: BlankOption = "error",
    out: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Choose between the choices of a question, or of every line, with the best one's probability.

    A line is a JSON object, such as {"question": "Where are we?", "choices": ["Here.", "There."]}; a file
    that ends in .parquet has these columns. Prints the number of the choice, counted from 0, its probability
    and its text, separated by tabs. With --json, one object per question, with the probability of every
    choice. To resume a stopped run with --output, give the same command again.
    """
    json = json or out.json
    keys = question_field, choices_field
    given = question is not None and question != STANDARD_INPUT
    if given != bool(choice):
        raise InvalidRequest("give a question together with its choices (--choice), or lines of JSON")

    def predict(
        loaded: "Model", items: Sequence[Item], name: Callable[[int], str], progress: Progress
    ) -> "Sequence[Choice]":
        read = [_question(item.text, keys, name(index)) for index, item in enumerate(items)]
        return loaded.choose(
            [asked for asked, _ in read],
            [choices for _, choices in read],
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            progress=progress,
            name=name,
        )

    def row(loaded: "Model", item: Item, found: "Choice") -> str:
        if not json:
            return f"{found.index}\t{found.score:.4f}\t{safe(found.label)}\n"
        asked, choices = _question(item.text, keys, "the line")
        return named(loaded, item, question=asked, choices=choices, **plain(found))

    settings = (keys, truncation, overlap_tokens, json)
    job = Job("choosing", run, model, predict, row, settings)
    if given:
        line = json_format.dumps({question_field: question, choices_field: choice})
        predict_text(job, Item(line, "", 0, "the text", None, line))
    else:
        name = file or STANDARD_INPUT
        if PurePath(name).suffix == ".parquet":
            require("parquet")
            predict_items(job, Given(name, "parquet", _parquet), out)
        else:
            predict_items(job, Given(name, "lines", item_reader("lines", Columns(None), blank)), out)


def _parquet(stream: BinaryIO, name: str) -> Iterator[Item]:
    """The rows of a Parquet file as the lines of JSON that they correspond to."""
    for number, (where, row) in enumerate(parquet_rows(Stream(name, stream)), start=1):
        line = json_format.dumps(row, default=str)
        yield Item(line, name, number, str(where), {"source": name, "row": number}, line)


def _question(line: str, keys: tuple[str, str], name: str) -> tuple[str, list[Any]]:
    """The question and the choices of a line.

    Raises:
        InvalidText: it is not a JSON object, or lacks a key, or a value is of another type.
    """
    try:
        found = json_format.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidText(f"{name} is not a JSON object; give one with the keys {' and '.join(keys)}")
    missing = [key for key in keys if key not in found]
    if missing:
        option = "question" if missing[0] == keys[0] else "choices"
        raise InvalidText(
            f"{name} has no key {quoted(missing[0])}; name another of its keys with --{option}-field "
            f"(keys: {', '.join(map(quoted, found))})"
        )
    asked, choices = (found[key] for key in keys)
    if not isinstance(asked, str) or not isinstance(choices, list):
        wrong, kind = (keys[1], "a list of strings") if isinstance(asked, str) else (keys[0], "a string")
        raise InvalidText(f"{name} has {quoted(found[wrong])} under {quoted(wrong)}; give {kind}")
    return asked, choices
