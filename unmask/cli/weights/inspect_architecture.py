"""``unmask inspect --picture`` and ``--against``: an architecture drawn, and two of them compared."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.optional import require
from unmask.cli.output import console, print_json, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmask.spec import CheckpointOutput, EncoderSpec
    from unmask.spec.compat import Compat
    from unmask.spec.elmo import ElmoSpec
    from unmask.weights.read.architecture import Architecture, ArchitectureComparison, Value

AgainstOption = Annotated[
    str | None,
    Parameter(help="compare with this checkpoint, or a published one that need not be on this machine"),
]
PictureOption = Annotated[
    Path | None,
    Parameter(help="draw the architecture, with --against both, to this file: .svg, .pdf or .png"),
]


def check_options(picture: Path | None, against: str | None, *, tensors: bool) -> None:
    """Fail before a checkpoint is read if the picture could not be written.

    Raises:
        InvalidRequest: the file of the picture has another ending, or options exclude each other.
        MissingExtra: matplotlib is not installed, and the picture is a PDF or PNG.
        OutputError: the file cannot be written.
    """
    if against is not None and tensors:
        raise InvalidRequest("--tensors lists one checkpoint; leave out --against")
    if picture is None:
        return
    from unmask.interpret.figures.paper import check_format

    check_format(picture)
    check_can_write(picture)
    if picture.suffix.lower() != ".svg":
        require("figures")


def show_architecture(
    name: str,
    against: str | None,
    picture: Path | None,
    *,
    revision: str | None,
    compat: "Compat",
    verify: bool,
    ignore_tensors: "Sequence[str]",
    json: bool,
) -> bool:
    """Draw or compare; return whether nothing remains to be shown.

    What remains is the checkpoint's files, of an encoder that has them.

    Raises:
        CheckpointError: a checkpoint cannot be found or read.
        OutputError: the picture cannot be written.
    """
    from unmask.weights.read.architecture import compare_architectures, find_architecture_of

    if against is None and picture is not None and (elmo := _elmo(name)) is not None:
        _draw(picture, (elmo,), (Path(name).resolve().name,), (None,))
        return True
    first = find_architecture_of(name, revision, compat, verify=verify or None, ignore_tensors=ignore_tensors)
    names = (name,) if against is None else (name, against)
    every = [first, *(find_architecture_of(other, None, compat) for other in names[1:])]
    if picture is not None:
        specs, outputs = [one.spec for one in every], [one.output for one in every]
        _draw(picture, specs, [one.name for one in every], outputs)
    if len(every) == 2:
        comparison = compare_architectures(*every)
        if json:
            print_json(comparison)
        else:
            _show_comparison(comparison)
        return True
    if first.on_disk:
        return False
    if json:
        print_json(first)
    else:
        _show_published(first)
    return True


def _elmo(name: str) -> "ElmoSpec | None":
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    from unmask.weights.elmo.find import find_elmo

    found = find_elmo(folder)
    return None if found is None else found.spec()


def _draw(
    picture: Path,
    specs: "Sequence[EncoderSpec | ElmoSpec]",
    names: "Sequence[str]",
    outputs: "Sequence[CheckpointOutput | None]",
) -> None:
    from unmask.interpret.figures.architecture import save_architecture

    save_architecture(picture, *specs, names=names, outputs=outputs)
    print(f"{picture}: the architecture of {' and '.join(names)}", file=sys.stderr)


def _show_comparison(comparison: "ArchitectureComparison") -> None:
    screen = console(width=110)
    shown = table(None, "", "", safe(comparison.a), safe(comparison.b))
    for column in shown.columns[2:]:
        column.min_width = 24
        column.max_width = 40
    for row in comparison.rows:
        style = "bold" if row.differs else ""
        mark = "≠" if row.differs else ""
        shown.add_row(safe(row.name), mark, _words(row.a), _words(row.b), style=style)
    screen.print(shown)
    count = sum(row.differs for row in comparison.rows)
    screen.print(
        f"\n{count} of {len(comparison.rows)} rows differ (≠); - is not known here or does not apply"
    )


def _words(value: "Value") -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else safe(value)


def _show_published(one: "Architecture") -> None:
    from unmask.spec.describe import describe_spec

    screen = console(width=100)
    screen.print(
        f"[bold]{safe(one.name)}[/bold], {one.family}, {safe(one.paper or '')}: as published; it is not on "
        "this machine, and nothing was downloaded"
    )
    shown = table(None, "", "")
    shown.show_header = False
    for name, value in describe_spec(one.spec):
        shown.add_row(safe(name), safe(value))
    screen.print(shown)
