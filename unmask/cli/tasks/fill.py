"""``unmask fill``: predictions for the mask tokens of a text, or of each line of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from unmask.cli.inputs import LongestText
from unmask.cli.items import Item, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TruncationOption, how_many
from unmask.cli.output import for_programs, marked, plain, printable, safe, table
from unmask.cli.tasks.predict import FILE, INPUT, FileOptions, InputOptions, Job, Name, Shown, predict
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.fill import FilledMask

    Masks = tuple[FilledMask, ...]


def fill(
    text: Annotated[
        str | None,
        Parameter(help="a text with mask tokens; default: standard input, one text per line"),
    ] = None,
    *,
    source: InputOptions = INPUT,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    top: Annotated[int, how_many("number of predictions per mask")] = 5,
    truncation: TruncationOption = "error",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Predict the words at the mask tokens of a text, such as [MASK], or of every line of a file.

    Input of any size is streamed. With --json, each text gives one JSON object. To resume a stopped run with
    --output, give the same command again.
    """
    longest = LongestText()

    def predicted(loaded: "Model", items: Sequence[Item], name: Name, _: Progress) -> "Sequence[Masks]":
        from unmask.tasks.fill import of_encodings

        words = loaded.spec.embedding.vocabulary
        if not 1 <= top <= words:
            raise InvalidRequest(f"--top is {top}; it can be 1 to {words}")
        texts = [text_of(item) for item in items]
        encodings = longest.encode(loaded, texts, truncation, name)
        return of_encodings(loaded.reader, encodings, top_k=top, name=name)(loaded.engine)

    job = Job(
        verb="filling",
        run=run,
        model=model,
        predict=predicted,
        lines=_lines,
        details=lambda item, masks: {"text": item.value, "masks": plain(masks)},
        shown=_shown,
        json=json or target.json,
        settings=(top, truncation),
    )
    predict(job, source.items(text, ("lines", *TABLES)), target)
    longest.warn()


def _lines(item: Item, masks: "Masks") -> str:
    parts: list[str | Table] = []
    for mask in masks:
        before, after = item.shown[max(0, mask.start - 40) : mask.start], item.shown[mask.end : mask.end + 40]
        rows = [
            (f"{guess.probability:.4f}", safe(guess.text), safe(guess.piece)) for guess in mask.predictions
        ]
        parts += [
            f"{safe(before)}[bold]___[/bold]{safe(after)}",
            table(None, "probability", "word", "token", right=("probability",), rows=rows),
        ]
    return for_programs(*parts)


def _shown(item: Item, masks: "Masks") -> Shown:
    """The best words of each mask, after its number if there are several."""
    rows: list[Sequence[str | Text]] = [
        (
            *([str(number) if place == 0 else ""] if len(masks) > 1 else []),
            f"{best.probability:.4f}",
            Text(printable(best.text.strip() or best.text), "bold cyan"),
            Text(printable(best.piece), "dim"),
        )
        for number, mask in enumerate(masks, start=1)
        for place, best in enumerate(mask.predictions)
    ]
    return Shown(marked(item.shown, [(mask.start, mask.end) for mask in masks]), rows)
