"""``unmask answer``: the spans of texts that answer a question."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, standard_input
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, print_json, safe
from unmask.cli.predict import LongTextsOption, OverlapOption
from unmask.errors import InvalidRequest, InvalidText


def answer(
    *contexts: Annotated[
        str, Parameter(help="texts to search for the answer; default: standard input as one text")
    ],
    question: Annotated[str, Parameter(help="the question")],
    file: Annotated[
        list[str] | None, Parameter(help="a file whose whole text is a context; may be repeated")
    ] = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    top: Annotated[int, Parameter(help="number of answers")] = 1,
    max_answer_tokens: Annotated[int, Parameter(help="the longest answer, in tokens")] = 30,
    no_answer: Annotated[
        bool, Parameter(negative="", help="the texts may lack the answer, for models trained for that")
    ] = False,
    null_threshold: Annotated[
        float, Parameter(help="with --no-answer: print none if no answer is more probable than this")
    ] = 0.5,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    json: JsonOption = False,
) -> None:
    """Find the answer to a question in one text or several, of any length.

    Prints the answers, most probable first: probability, context, start, end and text, separated by tabs;
    with --json, one object.
    """
    texts = [*contexts, *(_read(name) for name in file or ())] or [_read(STANDARD_INPUT)]
    found = run.load(model, "answers").answer(
        question,
        texts,
        top_k=top,
        max_answer_tokens=max_answer_tokens,
        no_answer=no_answer,
        null_threshold=null_threshold,
        truncation=truncation,
        overlap_tokens=overlap_tokens,
    )
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
        InvalidText: it cannot be read, or is not UTF-8.
        InvalidRequest: it is a folder.
    """
    try:
        content = standard_input().read() if name == STANDARD_INPUT else Path(name).read_bytes()
        return content.decode("utf-8-sig")
    except IsADirectoryError:
        raise InvalidRequest(f"{name} is a folder; name a file") from None
    except OSError as error:
        raise InvalidText(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"{name} is not UTF-8: byte 0x{content[error.start]:02x} at byte {error.start + 1}; convert the "
            "file to UTF-8 first"
        ) from None
