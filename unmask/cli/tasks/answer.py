"""``unmask answer``: the spans of texts that answer a question, or the questions of a file; and
``unmask check-answer``: the parts of an answer that texts do not support."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter
from rich.text import Text

from unmask.base.files import check_can_write, whole_file
from unmask.cli.items import Columns, Item, format_of, text_of
from unmask.cli.options import RUN, FormatOption, JsonOption, ModelOption, RunOptions, how_many
from unmask.cli.output import (
    around,
    json_line,
    marked,
    on_terminal,
    plain,
    print_json,
    print_prediction,
    printable,
    progress,
    tabbed,
)
from unmask.cli.streams import STANDARD_INPUT, read_standard_input
from unmask.cli.tasks.predict import (
    FILE,
    FileOptions,
    Job,
    LongTextsOption,
    Name,
    OverlapOption,
    Shown,
    over_windows,
    predict,
    source_of,
    typed,
)
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks import Progress
from unmask.tasks.values import PromptLanguage
from unmask.text.lines import LONGEST_LINE, content, decode
from unmask.text.rows import TABLES, Format

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.answer import Answers
    from unmask.tasks.check_answer import AnswerCheck


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
    target: FileOptions = FILE,
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
        if squad or nbest or target.output or format:
            raise InvalidRequest("--output, --squad, --nbest and --format are for --questions FILE")
        texts = [*contexts, *(_read(name) for name in file or ())] or [_read(STANDARD_INPUT)]
        loaded = run.load(model, ADAPTER)
        with progress("answering", 0) as report:
            within = over_windows(report, "the text" if len(texts) == 1 else "all of the texts")
            result = loaded.answer(question, texts, progress=within, **options)
        _show(question, texts, result, json)
        return
    if question is not None or contexts or file:
        raise InvalidRequest("--questions names a file with questions and contexts; give no others beside it")
    check_places(target.output, squad, nbest)

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Answers]":
        # The n-best file has the answers below the threshold too; `_of_squad` applies it.
        thresholds = {"null_threshold": 1.0} if squad else {}
        return loaded.answer(
            [item.shown for item in items],
            [str(item.second) for item in items],
            progress=progress,
            name=name,
            **options | thresholds,
        )

    def lines(item: Item, result: "Answers") -> str:
        if squad:
            return json_line(_of_squad(item, result, null_threshold))
        return tabbed((item.id, *cells) for cells in _cells(result, of_several=False))

    job = Job(
        verb="answering",
        run=run,
        model=model,
        predict=predicted,
        lines=lines,
        details=lambda item, result: {"id": item.id, "question": item.value, **plain(result)},
        shown=lambda item, result: _shown(item.shown, [str(item.second)], result),
        json=(json or target.json) and not squad,
        settings=(*options.items(), squad),
        finish=finished(nbest) if squad else None,
        default_adapter=ADAPTER,
    )
    formats: tuple[Format, ...] = ("squad", *TABLES)
    form = format_of("" if questions == STANDARD_INPUT else questions, format, formats)
    columns = Columns(None) if form == "squad" else Columns("question", "context", id="id", options=("", ""))
    predict(job, source_of(questions, form, formats, columns), target)


def check_answer(
    answer: Annotated[
        str | None, Parameter(help="the answer; default: those of a file or standard input")
    ] = None,
    *,
    context: Annotated[
        list[str] | None, Parameter(help="a text on which the answer should be based; may be repeated")
    ] = None,
    question: Annotated[
        str | None, Parameter(help="what was asked; without it the answer is a summary")
    ] = None,
    file: Annotated[
        str | None,
        Parameter(
            help="a file of answers with contexts, and questions if there are: JSON lines, CSV, TSV, Parquet"
        ),
    ] = None,
    format: FormatOption = None,
    model: ModelOption,
    run: RunOptions = RUN,
    threshold: Annotated[
        float, Parameter(help="the probability that an unsupported token must exceed")
    ] = 0.5,
    language: Annotated[
        PromptLanguage, Parameter(help="the language of the sentences around contexts and question")
    ] = "en",
    max_tokens: Annotated[
        int | None, Parameter(help="tokens of a window; default: as many as the model was trained to read")
    ] = None,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Find the parts of an answer that its contexts do not support, with a checkpoint of LettuceDetect.

    Prints each part: probability, start, end and text, separated by tabs; or "supported" and the highest
    probability of a token that it is not. With --json, one object. Of a file (columns answer, context and, if
    present, question and id) each line begins with the id. To resume a stopped run with --output, give the
    same command again.
    """
    if answer is not None and (file is not None or format is not None or not context):
        raise InvalidRequest("give an answer with --context TEXT, or --file FILE of answers with contexts")
    if answer is None and (context or question is not None):
        raise InvalidRequest("--context and --question are for an answer on the command line; give it too")

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[AnswerCheck]":
        return loaded.check_answer(
            [text_of(item) for item in items],
            [item.choices for item in items],
            [item.second for item in items],
            threshold=threshold,
            language=language,
            max_tokens=max_tokens,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            progress=progress,
            name=name,
        )

    def cells(result: "AnswerCheck") -> list[tuple[str, ...]]:
        if result.supported:
            return [("supported", f"{result.score:.4f}")]
        return [(f"{it.score:.4f}", str(it.start), str(it.end), it.text) for it in result.spans]

    def shown(item: Item, result: "AnswerCheck") -> Shown:
        rows: list[Sequence[str | Text]] = [
            (f"{it.score:.4f}", Text(printable(it.text), "bold cyan"), f"{it.start} to {it.end}")
            for it in result.spans
        ]
        return Shown(marked(item.shown), rows or cells(result), ("", "", "dim"))

    job = Job(
        verb="checking",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda item, result: tabbed([(*[item.id][: bool(item.id)], *row) for row in cells(result)]),
        details=lambda item, result: {"id": item.id, "answer": item.value, **plain(result)},
        shown=shown,
        json=json or target.json,
        settings=(threshold, language, max_tokens, truncation, overlap_tokens),
    )
    if answer is not None:
        predict(job, typed(answer, answer, question, tuple(context or ())), target)
        return
    columns = Columns("answer", "question", id="id", choices="context", of_answers=True, options=("", ""))
    predict(job, source_of(file, format, TABLES, columns), target)


def _cells(result: "Answers", *, of_several: bool) -> list[tuple[str, ...]]:
    """The cells of each answer, or that there is none; ``of_several`` contexts the number is one of them."""
    if not result.answers:
        return [("no answer",) if result.null_score is None else ("no answer", f"{result.null_score:.4f}")]
    return [
        (f"{best.score:.4f}", *[str(best.context)][:of_several], str(best.start), str(best.end), best.text)
        for best in result.answers
    ]


def _shown(question: str, contexts: Sequence[str], result: "Answers") -> Shown:
    """The question, and each answer with what stands around it."""
    if not result.answers:
        return Shown(marked(question), _cells(result, of_several=False))
    rows: list[Sequence[str | Text]] = [
        (
            f"{best.score:.4f}",
            Text(printable(best.text), "bold cyan"),
            *([f"text {best.context}"] if len(contexts) > 1 else []),
            f"{best.start} to {best.end}",
            around(contexts[best.context], best.start, best.end),
        )
        for best in result.answers
    ]
    return Shown(marked(question), rows, ("", "", "dim"))


def _show(question: str, contexts: Sequence[str], result: "Answers", json: bool) -> None:
    if json:
        print_json({"question": question, **plain(result)})
    elif on_terminal():
        shown = _shown(question, contexts, result)
        print_prediction(shown.heading, shown.rows, shown.styles)
    else:
        print(tabbed(_cells(result, of_several=True)), end="")


def _of_squad(item: Item, result: "Answers", null_threshold: float) -> dict[str, Any]:
    """The answers as the files of SQuAD's evaluation have them."""
    best = [
        {"text": span.text, "probability": span.score, "start": span.start, "end": span.end}
        for span in result.answers
    ]
    null = result.null_score
    answered = best and (null is None or null <= null_threshold)
    if null is not None:
        best.append({"text": "", "probability": null, "start": 0, "end": 0})
        best.sort(key=lambda span: -float(str(span["probability"])))
    return {"id": item.id, "text": result.answers[0].text if answered else "", "nbest": best}


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
        reason = str(error)
        raise InvalidText(f"{name}: {reason}" if reason.startswith("it ") else reason) from None


def check_places(output: Path | None, squad: bool, nbest: Path | None) -> None:
    """Refuse options that do not go together, and an n-best file that cannot be written.

    Raises:
        InvalidRequest: an option needs another one.
        OutputError: the n-best file cannot be written.
    """
    if squad and output is None:
        raise InvalidRequest("--squad writes a file; name it with --output")
    if nbest is not None:
        if not squad:
            raise InvalidRequest("--nbest is a second file beside that of --squad; give --squad too")
        if output is not None and nbest.absolute() == output.absolute():
            raise InvalidRequest(f"--nbest and --output are both {nbest}; name two files")
        check_can_write(nbest)


def finished(nbest: Path | None) -> Callable[[Path, Path], None]:
    """Makes the file of predictions, and the n-best file if it is named, from the stored rows."""

    def finish(stored: Path, output: Path) -> None:
        if nbest is not None:
            with whole_file(nbest) as whole:
                _write_object(stored, whole, "nbest")
        _write_object(stored, output, "text")

    return finish


def _write_object(stored: Path, output: Path, key: str) -> None:
    """One object from the ids of questions to a value of their rows, without holding more than one row."""
    with output.open("w", encoding="utf-8", newline="\n") as file:
        between = "{\n"
        for row in _stored_rows(stored):
            value = json.dumps(row[key], ensure_ascii=False)
            file.write(f"{between}{json.dumps(row['id'], ensure_ascii=False)}: {value}")
            between = ",\n"
        file.write("\n}\n")


def _stored_rows(stored: Path) -> Iterator[dict[str, Any]]:
    with stored.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
