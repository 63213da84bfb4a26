"""``unmask models``: supported families, published checkpoints, which are on this machine, and adapters."""

from dataclasses import dataclass
from itertools import groupby

from unmask.cli.options import JsonOption
from unmask.cli.output import console, print_json, safe, table

CACHED, INSTALLED = "in the hub's cache", "installed, as default"
HERE = {CACHED: "cached", INSTALLED: "default"}
"""How a checkpoint can be loaded offline, and its short form in a table."""

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
    json: JsonOption = False,
) -> None:
    """List published checkpoints of every family, those on this machine, and adapters."""
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


def _shipped_adapters() -> tuple[AdapterRow, ...]:
    from unmask.base.optional import installed
    from unmask.spec import ROLES
    from unmask.weights.adapters.adapter import SHIPPED_ADAPTERS, find_adapter

    adapters = [find_adapter(name) for name in SHIPPED_ADAPTERS] if installed("models") else []
    return tuple(
        AdapterRow(
            adapter.name, str(ROLES[adapter.role].command), tuple(adapter.config.get("id2label", {}).values())
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
