"""Models for a task, best first, with the figures and where they are from: ``python -m benchmarks.guide``."""

from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.padding import Padding

from benchmarks.guide import Device, Figure, Ranked, Task, guide
from unmask.cli.main import main
from unmask.cli.options import JsonOption
from unmask.cli.output import console, print_json, safe

COMMAND = "python -m benchmarks.guide"
app = App(
    name=COMMAND,
    help="Rank published encoders for a task by recorded figures.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
MOST = 6
"""Models of each list for people; ``--json`` gives all."""


@app.default
def show_guide(
    *,
    task: Annotated[Task, Parameter(help="what the model is for")],
    tokens: Annotated[int, Parameter(help="the length of the texts in tokens")] = 256,
    device: Annotated[Device, Parameter(help="where the model is to run")] = "cpu",
    json: JsonOption = False,
) -> None:
    """Rank published encoders for a task by recorded figures; nothing is measured or downloaded."""
    ranking = guide(task, tokens=tokens, device=device)
    if json:
        print_json(ranking)
        return
    screen = console(width=100)
    where = {"cpu": "a CPU", "cuda": "a GPU"}[device]
    screen.print(f"Models for {task}, texts of {tokens:,} tokens, {where}", soft_wrap=False)
    screen.print(f"Order: {ranking.order}.", soft_wrap=False)
    screen.print(
        "Published figures are of different papers and protocols; differences of a point say little. "
        "Measure on data of your own before you choose.",
        soft_wrap=False,
    )
    for title, every in (("ready to use", ranking.ready), ("to fine-tune for the task", ranking.to_train)):
        if every:
            screen.print(f"\n[bold]{title}[/bold]")
            for place, ranked in enumerate(every[:MOST], start=1):
                _show(ranked, place, screen, device)
            if len(every) > MOST:
                screen.print(f"  and {len(every) - MOST} more; --json lists all")


def _show(ranked: Ranked, place: int, screen: Console, device: str) -> None:
    size = f"{ranked.parameters / 1e6:,.1f} million parameters, {ranked.weights_mb:,} MB in float32"
    screen.print(f"{place}. [bold]{safe(ranked.name)}[/bold]  {size}")
    for reason in ranked.reasons:
        _line(reason, screen)
    if ranked.ready:
        _line(ranked.ready, screen)
    ordered = sorted(ranked.scores, key=lambda figure: figure is not ranked.score)
    for figure in ordered:
        _line(f"{figure.measure} {figure.value:g} ({_origin(figure)})", screen)
    if not ordered:
        _line("score: not measured here, and no published one recorded", screen)
    if ranked.speed is None:
        _line(f"speed on {device}: not measured here", screen)
    else:
        speed = f"{ranked.speed.value:,g} {ranked.speed.measure}"
        _line(f"at {ranked.speed.tokens:,} tokens {speed} ({_origin(ranked.speed)})", screen)


def _line(text: str, screen: Console) -> None:
    screen.print(Padding(safe(text), (0, 0, 0, 3)), soft_wrap=False)


def _origin(figure: Figure) -> str:
    kind = "measured here" if figure.kind == "measured" else "published"
    return f"{kind}, {figure.date}: {figure.source}"


if __name__ == "__main__":
    main(lambda _: app, COMMAND)
