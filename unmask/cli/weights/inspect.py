"""``unmask inspect``: a checkpoint's architecture, and the use of its tensors."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from unmask.base.files import check_can_write
from unmask.base.optional import require, require_torch
from unmask.cli.options import CompatOption, IgnoreOption, JsonOption, RevisionOption
from unmask.cli.output import console, print_json, print_legend, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmask.interpret.geometry import WeightSimilarity
    from unmask.spec import CheckpointOutput, EncoderSpec
    from unmask.spec.config_keys import Compat
    from unmask.spec.elmo import ElmoSpec
    from unmask.weights import Checkpoint
    from unmask.weights.read.architecture import Architecture, ArchitectureComparison, Value
    from unmask.weights.read.inspect import Inspection


NAMED = 3
"""Number of tensors that a summary names."""


AgainstOption = Annotated[
    str | None,
    Parameter(help="compare with this checkpoint, or a published one that need not be on this machine"),
]


PictureOption = Annotated[
    Path | None,
    Parameter(help="draw the architecture, with --against both, to this file: .svg, .pdf or .png"),
]


def inspect(
    checkpoint: Annotated[str, Parameter(help="a checkpoint folder, a hub id, or default")],
    *,
    revision: RevisionOption = None,
    compat: CompatOption = "published",
    tensors: Annotated[
        bool, Parameter(negative="", help="list every tensor with its shape, dtype and use")
    ] = False,
    verify: Annotated[
        bool,
        Parameter(negative="", help="compare the SHA-256 of every file with the stored checksums"),
    ] = False,
    against: AgainstOption = None,
    picture: PictureOption = None,
    similarity: Annotated[
        bool,
        Parameter(negative="", help="read the weights: how similar is each matrix between layers"),
    ] = False,
    ignore_tensor: IgnoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show a checkpoint's architecture, parameter count, tokenizer, and the use of its tensors."""
    from unmask.weights import find, read_checkpoint
    from unmask.weights.read.inspect import inspect as inspect_checkpoint

    check_options(picture, against, tensors=tensors)
    if similarity:
        if tensors or against is not None or picture is not None:
            raise InvalidRequest(
                "--similarity is about the weights of one checkpoint; leave out --tensors, --against and "
                "--picture"
            )
        checkpoint_read = read_checkpoint(
            find(checkpoint, revision), compat, verify=verify or None, ignore_tensors=ignore_tensor or ()
        )
        show_similarity(checkpoint_read, json=json)
        return
    if against is not None or picture is not None:
        shown = show_architecture(
            checkpoint,
            against,
            picture,
            revision=revision,
            compat=compat,
            verify=verify,
            ignore_tensors=ignore_tensor or (),
            json=json,
        )
        if shown:
            return
    inspection = inspect_checkpoint(
        read_checkpoint(
            find(checkpoint, revision), compat, verify=verify or None, ignore_tensors=ignore_tensor or ()
        )
    )
    if json:
        print_json(inspection)
        return
    screen = console(width=100)
    _show(inspection, screen)
    if tensors:
        _show_tensors(inspection, console())
    else:
        screen.print("\nUse --tensors to list every tensor and --json for every field of the architecture")


def _show(inspection: "Inspection", screen: Console) -> None:
    from unmask.spec.describe import describe_spec

    for title, rows in (
        (None, _facts(inspection)),
        ("\n[bold]architecture[/bold]", describe_spec(inspection.spec)),
        ("\n[bold]tensors[/bold]", _tensors(inspection)),
    ):
        grid = table(None, "", "")
        grid.show_header = False
        grid.columns[0].no_wrap = False
        grid.columns[0].max_width = 28
        for name, value in rows:
            grid.add_row(safe(name), safe(value))
        if title:
            screen.print(title)
        screen.print(grid)


def _facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    from unmask.spec import PooledVector
    from unmask.spec.describe import describe_output

    limit, trained, head = inspection.max_tokens, inspection.trained_tokens, inspection.head
    yield "name", inspection.name
    yield "folder", inspection.folder
    yield "revision", inspection.revision or "none, a local folder"
    yield "family", inspection.family
    yield "parameters", f"{inspection.parameter_count:,}"
    yield "maximum length", "unlimited" if limit is None else f"{limit:,} tokens, special tokens included"
    if trained is not None:
        yield "trained on", f"at most {trained:,} tokens; longer texts are read with a warning"
    yield "tokenizer", inspection.tokenizer or "none; reads token ids only"
    head_missing = f"none: {inspection.head_missing}"
    name = "sentence embedding" if head is None or isinstance(head, PooledVector) else "output"
    yield name, head_missing if head is None else describe_output(head)
    if inspection.approximated:
        yield "approximated", "; ".join(inspection.approximated)
    if inspection.compat_differs:
        yield "with --compat hf", inspection.compat_differs
    yield "checksums", _checksums(inspection)
    if inspection.unread_config:
        yield "unrecognized config keys", ", ".join(inspection.unread_config)


def _checksums(inspection: "Inspection") -> str:
    verified = inspection.verified
    if verified is None:
        return "none stored"
    return f"{'SHA-256' if verified.hashed else 'sizes'} of {verified.files} files verified"


def _tensors(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    """How many tensors are used, with their dtypes, and why the others are not."""
    used = Counter(tensor.dtype for tensor in inspection.tensors if tensor.ours is not None)
    dtypes = ", ".join(f"{count} in {dtype}" for dtype, count in used.most_common())
    yield "used", f"{used.total()} of {len(inspection.tensors)} ({dtypes}); none missing"
    if inspection.odd_dtypes:
        usual = used.most_common(1)[0][0]
        yield "unusual dtype", f"{_some(inspection.odd_dtypes)}; the others are {usual}, so check the file"
    ignored: dict[str, list[str]] = {}
    for tensor in inspection.tensors:
        if tensor.ours is None:
            ignored.setdefault(str(tensor.reason), []).append(tensor.name)
    for reason, names in ignored.items():
        yield f"{len(names)} ignored", f"{reason} ({_some(tuple(names))})"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _show_tensors(inspection: "Inspection", screen: Console) -> None:
    grid = table("", "tensor", "shape", "dtype", "use")
    for tensor in inspection.tensors:
        use = tensor.ours or f"ignored: {tensor.reason}"
        grid.add_row(safe(tensor.name), " x ".join(map(str, tensor.shape)), tensor.dtype, safe(use))
    screen.print(grid)


def show_similarity(checkpoint: "Checkpoint", *, json: bool) -> None:
    """Print how similar each matrix is between the layers of a checkpoint.

    Raises:
        CheckpointError: its weights cannot be read.
        InvalidRequest: see `unmask.interpret.geometry.weight_similarity`.
    """
    require_torch("weights")
    from unmask.interpret.geometry import weight_similarity
    from unmask.weights.build import build

    matrices = weight_similarity(build(checkpoint))
    name, shared = checkpoint.source.name, checkpoint.spec.weights_of_layer
    if json:
        print_json(
            {"name": name, "revision": checkpoint.source.revision, "weights_of_layer": shared}
            | {"matrices": matrices}
        )
        return
    screen = console()
    right = (
        *("features", "cosine, neighbors", "cosine, all", "random ±"),
        *("CKA, neighbors", "CKA, all", "random ± "),
    )
    grid = table(None, "matrix", *right, right=right)
    for matrix in matrices:
        numbers = (*_pairs(matrix, "cosine"), *_pairs(matrix, "cka"))
        grid.add_row(matrix.name, f"{matrix.features:,}", *numbers)
    screen.print(f"[bold]{safe(name)}[/bold]: weights of {len(shared)} layers, width {matrices[0].width}")
    screen.print(grid)
    if len(set(shared)) < len(shared):
        screen.print(f"layers share weights; the set of each layer: {', '.join(map(str, shared))}")
    print_legend(SIMILARITY_LEGEND)


def _pairs(matrix: "WeightSimilarity", measure: Literal["cosine", "cka"]) -> tuple[str, str, str]:
    """The mean over layers that follow one another, the ends over all pairs, and what chance gives."""
    rows = getattr(matrix, measure)
    count = len(rows)
    neighbors = [rows[place][place + 1] for place in range(count - 1)]
    every = [rows[first][second] for first in range(count) for second in range(first + 1, count)]
    limit = getattr(matrix, f"random_{measure}")
    return (
        f"{sum(neighbors) / len(neighbors):.3f}",
        f"{min(every):.3f} to {max(every):.3f}",
        f"{limit:.3f}",
    )


SIMILARITY_LEGEND = """\
neighbors  mean over layers that follow one another; all: the ends over every two layers
cosine     of all entries: 1 for equal matrices
CKA        debiased, over the dimensions of the residual stream: also 1 if the features or heads of a
           matrix are permuted or rotated
random ±   two matrices of random entries have 0 in expectation, and 95 % of them are between this and
           minus this. Every two layers: --json"""


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
        specs, outputs = [entry.spec for entry in every], [each.output for each in every]
        _draw(picture, specs, [each.name for each in every], outputs)
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
    from unmask.weights.elmo import find_elmo

    elmo = find_elmo(folder)
    return None if elmo is None else elmo.spec()


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
    grid = table(None, "", "", safe(comparison.a), safe(comparison.b))
    for column in grid.columns[2:]:
        column.min_width = 24
        column.max_width = 40
    for row in comparison.rows:
        style = "bold" if row.differs else ""
        mark = "≠" if row.differs else ""
        grid.add_row(safe(row.name), mark, _words(row.a), _words(row.b), style=style)
    screen.print(grid)
    count = sum(row.differs for row in comparison.rows)
    screen.print(
        f"\n{count} of {len(comparison.rows)} rows differ (≠); - is not known here or does not apply"
    )


def _words(value: "Value") -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else safe(value)


def _show_published(architecture: "Architecture") -> None:
    from unmask.spec.describe import describe_spec

    screen = console(width=100)
    screen.print(
        f"[bold]{safe(architecture.name)}[/bold], {architecture.family}, "
        f"{safe(architecture.paper or '')}: as published; it is not on this "
        "machine, and nothing was downloaded"
    )
    grid = table(None, "", "")
    grid.show_header = False
    for name, value in describe_spec(architecture.spec):
        grid.add_row(safe(name), safe(value))
    screen.print(grid)
