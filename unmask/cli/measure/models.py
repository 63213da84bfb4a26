"""``unmask models``: published checkpoints, those on this machine, adapters, and which to take for a task."""

from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.padding import Padding

from unmask.cli.options import JsonOption
from unmask.cli.output import console, print_json, safe, table
from unmask.errors import InvalidRequest
from unmask.evaluate.guide import Device, Figure, Ranked, Task, guide

CACHED, INSTALLED = "in the hub's cache", "installed, as default"
HERE = {CACHED: "cached", INSTALLED: "default"}
"""How a checkpoint can be loaded offline, and its short form in a table."""

OTHER_HEADS = (
    "Over encoders of these families, heads of other libraries are read too: entities of labels that are "
    "named in the call (GLiNER, unmask tag --labels), classes by such labels (GLiClass, unmask classify "
    "--labels), what a schema names (GLiNER2, unmask extract), and the sentences that a query needs "
    "(Provence and OpenProvence, unmask prune)"
)

NAME_WIDTH, NUMBER_WIDTHS = 52, (6, 5, 13, 6)
"""Column widths, so that the tables of all families are aligned."""


@dataclass(frozen=True)
class AdapterRow:
    """One adapter that comes with this package."""

    name: str
    """As ``--adapter`` takes it."""
    command: str
    """The command that it is for."""
    labels: tuple[str, ...]


@dataclass(frozen=True)
class ModelRow:
    """One published checkpoint."""

    name: str
    family: str
    layers: int
    width: int
    heads: int
    parameter_count: int
    max_tokens: int | None
    """The longest text that it reads, special tokens included; None: no limit."""
    trained_tokens: int | None
    """The longest text that it was trained on, where it reads longer ones; None: not known."""
    use: str
    """What it was trained for; empty for an encoder that is fine-tuned before it is used."""
    license: str
    paper: str
    here: str | None
    """How it can be loaded offline; None if it cannot."""
    adapters: tuple[AdapterRow, ...]
    """The adapters of this checkpoint that come with this package."""


def models(
    *,
    task: Annotated[
        Task | None, Parameter(help="rank them for this use, by recorded figures, instead of listing them")
    ] = None,
    tokens: Annotated[int | None, Parameter(help="with --task: the length of the texts (256)")] = None,
    device: Annotated[Device | None, Parameter(help="with --task: where the model is to run (cpu)")] = None,
    json: JsonOption = False,
) -> None:
    """List published checkpoints, those on this machine, and adapters; or rank them for a task.

    Nothing is measured or downloaded for a ranking: every figure is printed with its source.
    """
    if task is not None:
        _rank(task, 256 if tokens is None else tokens, device or "cpu", json)
        return
    for option, value in (("--tokens", tokens), ("--device", device)):
        if value is not None:
            raise InvalidRequest(f"{option} needs --task, such as --task search")
    from unmask.base.optional import installed
    from unmask.families import DEFAULT_NAME, FAMILIES
    from unmask.spec.shapes import parameter_count
    from unmask.weights.read.find import cached

    on_disk = dict.fromkeys(cached(), CACHED)
    if installed("default"):
        on_disk[DEFAULT_NAME] = INSTALLED
    shipped = _shipped_adapters()
    rows = [
        ModelRow(
            name=published.name,
            family=family.name,
            layers=len(published.spec.layers),
            width=published.spec.width,
            heads=published.spec.layers[0].mixer.heads,
            parameter_count=parameter_count(published.spec),
            max_tokens=published.spec.max_tokens,
            trained_tokens=published.spec.trained_tokens,
            use=published.use,
            license=published.license,
            paper=published.paper,
            here=on_disk.get(published.name),
            adapters=shipped if published.name == DEFAULT_NAME else (),
        )
        for family in FAMILIES
        for published in family.published
    ]
    if json:
        print_json(rows)
        return
    _show(rows)
    if shipped:
        _show_adapters(shipped)
    others = ", ".join(family.name for family in FAMILIES if not family.published)
    sentence = f"Families without a published checkpoint in common use: {others}"
    console(width=100).print(sentence, soft_wrap=False)
    console(width=100).print(OTHER_HEADS, soft_wrap=False)


def _shipped_adapters() -> tuple[AdapterRow, ...]:
    from unmask.base.optional import installed
    from unmask.spec import ROLES
    from unmask.weights.adapters.adapter import SHIPPED_ADAPTERS, find_adapter

    adapters = [find_adapter(name) for name in SHIPPED_ADAPTERS] if installed("models") else []
    return tuple(
        AdapterRow(
            adapter.name,
            "tag" if adapter.role is None else str(ROLES[adapter.role].command),
            tuple(adapter.config.get("id2label", {}).values()),
        )
        for adapter in adapters
    )


def _show_adapters(rows: tuple[AdapterRow, ...]) -> None:
    screen = console(width=100)
    screen.print("[bold]adapters[/bold] of default, in the package unmask-models")
    grid = table(None, "  --adapter", "command", "labels")
    for row in rows:
        grid.add_row(f"  {row.name}", f"unmask {row.command}", ", ".join(map(safe, row.labels)))
    screen.print(grid)
    screen.print()


def _show(rows: list[ModelRow]) -> None:
    """A table per family, paper, license and use, so that shared facts appear once and lines stay short."""
    screen = console(width=100)
    numbers = ("layers", "width", "parameters", "tokens")
    for (family, paper, license, use), group in groupby(
        rows, lambda row: (row.family, row.paper, row.license, row.use)
    ):
        purpose = f": {safe(use)}" if use else ""
        screen.print(f"[bold]{family}[/bold], {safe(paper)}, {safe(license)}{purpose}")
        grid = table(None, "  name", *numbers, "here", right=numbers)
        grid.columns[0].min_width = NAME_WIDTH
        for column, width in zip(grid.columns[1:], NUMBER_WIDTHS, strict=False):
            column.min_width = width
        for row in group:
            tokens = row.max_tokens or row.trained_tokens or "any"
            sizes = (row.layers, row.width, f"{row.parameter_count:,}", tokens)
            grid.add_row(f"  {row.name}", *map(str, sizes), HERE.get(row.here or "", ""))
        screen.print(grid)
        screen.print()


MOST = 6
"""Models of each list of a ranking for people; ``--json`` gives all."""


def _rank(task: Task, tokens: int, device: Device, json: bool) -> None:
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
                _show_ranked(ranked, place, screen, device)
            if len(every) > MOST:
                screen.print(f"  and {len(every) - MOST} more; --json lists all")


def _show_ranked(ranked: Ranked, place: int, screen: Console, device: Device) -> None:
    size = f"{ranked.parameters / 1e6:,.1f} million parameters, {ranked.weights_mb:,} MB in float32"
    screen.print(f"{place}. [bold]{safe(ranked.name)}[/bold]  {size}")
    lines = [*ranked.reasons, *([ranked.ready] if ranked.ready else [])]
    ordered = sorted(ranked.scores, key=lambda figure: figure is not ranked.score)
    lines += [f"{figure.measure} {figure.value:g} ({_origin(figure)})" for figure in ordered]
    if not ordered:
        lines.append("score: not measured here, and no published one recorded")
    if ranked.speed is None:
        lines.append(f"speed on {device}: not measured here")
    else:
        speed = f"{ranked.speed.value:,g} {ranked.speed.measure}"
        lines.append(f"at {ranked.speed.tokens:,} tokens {speed} ({_origin(ranked.speed)})")
    for line in lines:
        screen.print(Padding(safe(line), (0, 0, 0, 3)), soft_wrap=False)


def _origin(figure: Figure) -> str:
    kind = "measured here" if figure.kind == "measured" else "published"
    return f"{kind}, {figure.date}: {figure.source}"
