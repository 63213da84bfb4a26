"""``unmask fill``: predictions for the mask tokens of a text."""

from typing import Annotated

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, read_standard_input
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TruncationOption
from unmask.cli.output import console, print_json, safe, table
from unmask.errors import InvalidRequest


def fill(
    text: Annotated[str, Parameter(help="a text with mask tokens; - reads standard input")],
    *,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    top: Annotated[int, Parameter(help="number of predictions per mask")] = 5,
    truncation: TruncationOption = "error",
    json: JsonOption = False,
) -> None:
    """Predict the words at the mask tokens of a text, such as [MASK]."""
    if text == STANDARD_INPUT:
        text = read_standard_input()
    loaded = run.load(model)
    words = loaded.spec.embedding.vocabulary
    if not 1 <= top <= words:
        raise InvalidRequest(f"--top is {top}; it can be 1 to {words}")
    filled = loaded.fill(text, top_k=top, truncation=truncation)
    if json:
        print_json({"model": loaded.name, "revision": loaded.revision, "text": text, "masks": filled})
        return
    for mask in filled:
        before, after = text[max(0, mask.start - 40) : mask.start], text[mask.end : mask.end + 40]
        console().print(f"{safe(before)}[bold]___[/bold]{safe(after)}")
        shown = table(None, "probability", "word", "token", right=("probability",))
        for one in mask.predictions:
            shown.add_row(f"{one.probability:.4f}", safe(one.text), safe(one.piece))
        console().print(shown)
