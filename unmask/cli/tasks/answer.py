"""``unmask answer``: the spans of texts that answer a question, or the questions of a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, read_standard_input
from unmask.cli.items import Columns, Item, format_of, item_reader
from unmask.cli.options import RUN, FormatOption, JsonOption, ModelOption, RunOptions, how_many
from unmask.cli.output import plain, print_json, progress, safe
from unmask.cli.tasks.answer_rows import Shown, check_places, finished
from unmask.cli.tasks.predict import (
    FILE,
    FileOptions,
    Given,
    Job,
    LongTextsOption,
    OverlapOption,
    over_windows,
    predict_items,
)
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks import Progress
from unmask.text.lines import LONGEST_LINE, content, decode
from unmask.text.rows import TABLES, Format

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.answer import Answers

ADAPTER = "answers"
"""The adapter of the default model that answers questions."""


def answer(
    *contexts: Annotated[
        str, Parameter(help="texts to search for the answer; default: standard input as one text")
    ],
    question: Annotated[str | None, Parameter(help="the question")] = None,
    file: Annotated[
        list[str] | None, Parameter(help="a file whose whole text is a context; may be repeated")
    ] = None,
    questions: Annotated[
        str | None,
        Parameter(
            help="a file of questions with their contexts: SQuAD's layout, JSON lines, CSV, TSV or Parquet"
        ),
    ] = None,
    format: FormatOption = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    top: Annotated[int, how_many("number of answers")] = 1,
    max_answer_tokens: Annotated[int, Parameter(help="the longest answer, in tokens")] = 30,
    no_answer: Annotated[
        bool, Parameter(negative="", help="the texts may lack the answer, for models trained for that")
    ] = False,
    null_threshold: Annotated[
        float, Parameter(help="with --no-answer: print none if no answer is more probable than this")
    ] = 0.5,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    squad: Annotated[
        bool,
        Parameter(negative="", help="write --output as SQuAD's evaluation reads it: one object, id to text"),
    ] = False,
    nbest: Annotated[
        Path | None, Parameter(help="with --squad: also write the --top best answers to this file")
    ] = None,
    out: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Find the answer to a question in texts of any length, or to every question of a file.

    Prints the answers, most probable first: probability, context, start, end and text, separated by tabs;
    with --json, one object. Of a file of questions (columns question, context and, if present, id) each line
    begins with the question's id. To resume a stopped run with --output, give the same command again.
    Without a model, the default one reads with its adapter "answers".
    """
    options: dict[str, Any] = {
        "top_k": top,
        "max_answer_tokens": max_answer_tokens,
        "no_answer": no_answer,
        "null_threshold": null_threshold,
        "truncation": truncation,
        "overlap_tokens": overlap_tokens,
    }
    if questions is None:
        if question is None:
            raise InvalidRequest("there is no question; give --question TEXT, or --questions FILE")
        if squad or nbest or out.output or format:
            raise InvalidRequest("--output, --squad, --nbest and --format are for --questions FILE")
        texts = [*contexts, *(_read(name) for name in file or ())] or [_read(STANDARD_INPUT)]
        loaded = run.load(model, ADAPTER)
        with progress("answering", 0) as report:
            within = over_windows(report, "the text" if len(texts) == 1 else "all of the texts")
            found = loaded.answer(question, texts, progress=within, **options)
        _show(question, found, json)
        return
    if question is not None or contexts or file:
        raise InvalidRequest("--questions names a file with questions and contexts; give no others beside it")
    check_places(out.output, squad, nbest)
    name = questions
    form = format_of("" if name == STANDARD_INPUT else name, format, ("squad", *TABLES))
    columns = Columns(None) if form == "squad" else Columns("question", "context", id="id")
    shown = Shown(json=json or out.json, squad=squad, null_threshold=null_threshold)

    def predict(
        loaded: "Model", items: Sequence[Item], name: Callable[[int], str], progress: Progress
    ) -> "Sequence[Answers]":
        # The n-best file has the answers below the threshold too; `Shown` applies it.
        given = {**options, "null_threshold": 1.0} if squad else options
        return loaded.answer(
            [str(item.value) for item in items],
            [str(item.second) for item in items],
            progress=progress,
            name=name,
            **given,
        )

    settings = (*options.items(), shown)
    finish = finished(nbest) if squad else None
    predict_items(
        Job("answering", run, model, predict, shown.row, settings, finish, ADAPTER),
        Given(name, form, item_reader(form, columns, "error")),
        out,
    )


def _show(question: str, found: "Answers", json: bool) -> None:
    if json:
        print_json({"question": question, **plain(found)})
        return
    for one in found.answers:
        print(f"{one.score:.4f}\t{one.context}\t{one.start}\t{one.end}\t{safe(one.text)}")
    if not found.answers:
        print("no answer" + (f"\t{found.null_score:.4f}" if found.null_score is not None else ""))


def _read(name: str) -> str:
    """The whole text of a file or of standard input.

    Raises:
        InvalidText: it cannot be read, or is not text.
        InvalidRequest: it is a folder, or a table.
    """
    if name == STANDARD_INPUT:
        return read_standard_input()
    if Path(name).is_dir():
        raise InvalidRequest(f"{name} is a folder; name a file")
    form = format_of(name, None, get_args(Format))
    if form != "lines":
        raise InvalidRequest(
            f"{name} is taken for a file of format {form}, and --file reads a whole file as one text; name a "
            "file of questions with --questions, or pipe the file in to read it as a text"
        )
    try:
        return decode(content(Path(name), LONGEST_LINE))
    except InvalidText as error:
        said = str(error)
        raise InvalidText(f"{name}: {said}" if said.startswith("it ") else said) from None
