"""``unmask models --task``: models for a task, best first, with the figures and where they are from."""

from typing import TYPE_CHECKING, Literal

from rich.console import Console

from unmask.cli.output import console, print_json, safe

if TYPE_CHECKING:
    from unmask.bench.guide import Figure, Ranked

Task = Literal["search", "classification", "tagging", "answering", "reranking", "masked-words"]
"""`unmask.bench.guide.Task`, which is not imported before it is needed."""
Device = Literal["cpu", "cuda"]

MOST = 6
"""Models of each list for people; ``--json`` gives all."""


def show_guide(task: Task, tokens: int, device: Device, *, json: bool) -> None:
    """Print the ranking.

    Raises:
        InvalidRequest: see `unmask.bench.guide.guide`.
    """
    from unmask.bench.guide import guide

    found = guide(task, tokens=tokens, device=device)
    if json:
        print_json(found)
        return
    screen = console(width=100)
    where = {"cpu": "a CPU", "cuda": "a GPU"}[device]
    screen.print(f"Models for {task}, texts of {tokens:,} tokens, {where}", soft_wrap=False)
    screen.print(f"Order: {found.order}.", soft_wrap=False)
    screen.print(
        "Published figures are of different papers and protocols; differences of a point say little. "
        "Measure on data of your own before you choose.",
        soft_wrap=False,
    )
    for title, every in (("ready to use", found.ready), ("to fine-tune for the task", found.to_train)):
        if every:
            screen.print(f"\n[bold]{title}[/bold]")
            for place, one in enumerate(every[:MOST], start=1):
                _show(one, place, screen, device)
            if len(every) > MOST:
                screen.print(f"  and {len(every) - MOST} more; --json lists all")


def _show(one: "Ranked", place: int, screen: Console, device: str) -> None:
    size = f"{one.parameters / 1e6:,.1f} million parameters, {one.weights_mb:,} MB in float32"
    screen.print(f"{place}. [bold]{safe(one.name)}[/bold]  {size}")
    for reason in one.reasons:
        _line(reason, screen)
    if one.ready:
        _line(one.ready, screen)
    ordered = sorted(one.scores, key=lambda figure: figure is not one.score)
    for figure in ordered:
        _line(f"{figure.measure} {figure.value:g} ({_origin(figure)})", screen)
    if not ordered:
        _line("score: not measured here, and no published one recorded", screen)
    if one.speed is None:
        _line(f"speed on {device}: not measured here", screen)
    else:
        speed = f"{one.speed.value:,g} {one.speed.measure}"
        _line(f"at {one.speed.tokens:,} tokens {speed} ({_origin(one.speed)})", screen)


def _line(text: str, screen: Console) -> None:
    from rich.padding import Padding

    screen.print(Padding(safe(text), (0, 0, 0, 3)), soft_wrap=False)


def _origin(figure: "Figure") -> str:
    kind = "measured here" if figure.kind == "measured" else "published"
    return f"{kind}, {figure.date}: {figure.source}"
