"""``unmask models``: the families that are built, their published checkpoints, and what is here."""

from dataclasses import dataclass

from unmask.cli.options import JsonOption
from unmask.cli.output import console, print_json, table


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
    licence: str
    paper: str
    here: str | None
    """How it can be loaded without a network; None if it cannot."""


def models(*, json: JsonOption = False) -> None:
    """List the published checkpoints of every family that is built, and which are on this machine."""
    from importlib.util import find_spec

    from unmask.model.families import DEFAULT_NAME, DEFAULT_PACKAGE, FAMILIES
    from unmask.model.weights.hub import cached
    from unmask.model.weights.shapes import parameter_count

    on_disk = dict.fromkeys(cached(), "in the hub's cache")
    if find_spec(DEFAULT_PACKAGE) is not None:
        on_disk[DEFAULT_NAME] = "installed, as default"
    rows = [
        ModelRow(
            name=published.name,
            family=family.name,
            layers=len(published.spec.layers),
            width=published.spec.width,
            heads=published.spec.layers[0].mixer.heads,
            parameter_count=parameter_count(published.spec),
            max_tokens=published.spec.max_tokens,
            licence=published.licence,
            paper=published.paper,
            here=on_disk.get(published.name),
        )
        for family in FAMILIES
        for published in family.published
    ]
    if json:
        print_json(rows)
        return
    numbers = ("layers", "width", "heads", "parameters", "positions")
    shown = table(None, "name", "family", *numbers, "licence", "paper", "here", right=numbers)
    for row in rows:
        sizes = (
            row.layers,
            row.width,
            row.heads,
            f"{row.parameter_count:,}",
            row.max_tokens or "any",
        )
        shown.add_row(row.name, row.family, *map(str, sizes), row.licence, row.paper, row.here or "")
    console().print(shown)
    others = ", ".join(family.name for family in FAMILIES if not family.published)
    console().print(f"Built too, without a published checkpoint in common use: {others}")
