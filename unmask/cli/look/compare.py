"""``unmask compare``: what one or two language models predict at every token of a text, and how well."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import (
    RUN,
    JsonOption,
    ModelOption,
    RunOptions,
    TextArgument,
    TruncationOption,
    how_many,
)
from unmask.cli.output import console, present, print_legend, progress, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.predict_tokens import ComparedTokens, PredictedToken, TokenPredictions

LEGEND = """\
loss      -log p of what stands in the text, in nats; the mean is over all tokens
gain      how much lower the loss of model B is
guesses   the most probable tokens, most probable first
A model whose attention is causal predicts from earlier tokens alone; another one
predicts a masked token from all others, so it is given more."""


@dataclass(frozen=True)
class ModelPredictions:
    """What one model predicts."""

    model: str
    revision: str | None
    context: str
    """What it predicts from, see `unmask.tasks.predict_tokens.Context`."""
    loss: float
    """The mean over its tokens, in nats."""
    accuracy: float
    """The share of tokens that are its best guess."""
    tokens: "tuple[PredictedToken, ...]"


@dataclass(frozen=True)
class ComparedLosses:
    """A stretch of the text that both models cut at its ends, and its loss by each, in nats."""

    start: int
    end: int
    text: str
    first_loss: float
    second_loss: float


@dataclass(frozen=True)
class Comparison:
    """Everything ``unmask compare`` shows."""

    text: str
    first: ModelPredictions
    second: ModelPredictions | None
    compared: tuple[ComparedLosses, ...]
    """Empty for one model."""


def compare(
    text: TextArgument = None,
    *,
    model: ModelOption = "unmask-mini",
    model_b: Annotated[str | None, Parameter(help="a second model to compare with")] = None,
    run: RunOptions = RUN,
    top: Annotated[int, how_many("number of guesses per token")] = 3,
    truncation: TruncationOption = "error",
    json: JsonOption = False,
) -> None:
    """Show which tokens of a text a model can predict: the loss of each, and the best guesses.

    With --model-b, two models beside each other, such as one that reads in both directions and one whose
    attention is causal.
    """
    text = read_text(text)
    if top < 1:
        raise InvalidRequest(f"--top is {top}; it must be at least 1")
    names = [model] if model_b is None else [model, model_b]
    loaded = [(run if name == model else run.of_another_model()).load(name) for name in names]
    predicted = []
    for each in loaded:
        with progress("tokens", 0) as report:
            predicted.append(each.predict_tokens(text, top_k=top, truncation=truncation, progress=report))
    both = _compared(*predicted) if len(predicted) == 2 else ()
    models = [_of(each, predictions) for each, predictions in zip(loaded, predicted, strict=True)]
    comparison = Comparison(
        text,
        models[0],
        models[1] if model_b is not None else None,
        tuple(
            ComparedLosses(stretch.start, stretch.end, text[stretch.start : stretch.end], *stretch.losses)
            for stretch in both
        ),
    )
    present(comparison, lambda result: _show(result, both), json=json)


def _compared(first: "TokenPredictions", second: "TokenPredictions") -> "tuple[ComparedTokens, ...]":
    from unmask.tasks.predict_tokens import compare_predictions

    return compare_predictions(first, second)


def _of(loaded: "Model", predictions: "TokenPredictions") -> ModelPredictions:
    return ModelPredictions(
        loaded.name,
        loaded.revision,
        predictions.context,
        predictions.loss,
        predictions.accuracy,
        predictions.tokens,
    )


def _show(comparison: Comparison, both: "tuple[ComparedTokens, ...]") -> None:
    screen = console()
    for label, side in (("", comparison.first), ("B: ", comparison.second)):
        if side is not None:
            screen.print(
                f"{label}[bold]{safe(side.model)}[/bold], from {side.context}: "
                f"mean loss {side.loss:.3f} nats, {side.accuracy:.1%} of {len(side.tokens)} tokens "
                "guessed first"
            )
    if comparison.second is None:
        grid = table(None, "token", "loss", "rank", "guesses", right=("loss", "rank"))
        for token in comparison.first.tokens:
            grid.add_row(safe(token.piece), f"{token.loss:.2f}", str(token.rank), _guesses(token))
    else:
        right = ("loss", "loss B", "gain")
        grid = table(None, "text", "loss", "guesses", "loss B", "guesses B", "gain", right=right)
        for stretch in both:
            first, second = stretch.losses
            grid.add_row(
                safe(comparison.text[stretch.start : stretch.end]),
                f"{first:.2f}",
                _guesses(stretch.first[0]),
                f"{second:.2f}",
                _guesses(stretch.second[0]),
                f"{first - second:+.2f}",
            )
    screen.print(grid)
    print_legend(LEGEND)


def _guesses(token: "PredictedToken") -> str:
    return "  ".join(f"{safe(guess.piece)} {guess.probability:.2f}" for guess in token.predictions)
