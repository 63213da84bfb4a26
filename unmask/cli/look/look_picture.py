"""``unmask look --picture`` and ``--csv``: a map as a figure for a paper, and as a table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.optional import require
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unmask.interpret import AttentionView

Pool = Literal["mean", "max"]
"""`unmask.interpret.attention.pooled.Pool`, which is not imported before a model is loaded."""

PictureOption = Annotated[
    Path | None,
    Parameter(
        help="with --layer and --head, or --pool: write the map as a figure, .svg, .pdf or .png",
    ),
]
CsvOption = Annotated[
    Path | None,
    Parameter(help="with --layer and --head, or --pool: write the map, queries by keys, as CSV"),
]
PoolOption = Annotated[
    Pool | None,
    Parameter(help="show the mean or the maximum over the heads of --layer, or over all heads"),
]


def check_picture(path: Path | None, csv: Path | None, *, has_map: bool) -> None:
    """Fail before a model is loaded if the picture or the table could not be written.

    Raises:
        InvalidRequest: no map was asked for, or the file of the picture has another ending.
        MissingExtra: matplotlib is not installed.
        OutputError: a file cannot be written.
    """
    for name, file in (("--picture", path), ("--csv", csv)):
        if file is not None and not has_map:
            raise InvalidRequest(f"{name} writes one map; name it with --layer and --head, or with --pool")
    if csv is not None:
        check_can_write(csv)
    if path is None:
        return
    from unmask.interpret.figures.paper import check_format

    check_format(path)
    check_can_write(path)
    require("figures")


def write_maps(
    view: "AttentionView",
    layer: int | None,
    head: int | None,
    pool: Pool | None,
    *,
    picture: Path | None,
    csv: Path | None,
) -> None:
    """Write the map of one head, or that of ``pool``, to the files that are named."""
    layers = "all layers" if layer is None else f"layer {layer}"
    what = f"{layers}, head {head}" if pool is None else f"{layers}, {pool} over heads"
    if picture is not None:
        from unmask.interpret.figures.attention import map_figure, pooled_figure
        from unmask.interpret.figures.paper import save_figure

        if pool is not None:
            save_figure(pooled_figure(view, layer, pool), picture)
        else:
            assert layer is not None
            assert head is not None
            save_figure(map_figure(view, layer, head), picture)
    if csv is not None:
        from unmask.interpret.attention.pooled import row_slices, write_map

        parts = row_slices(len(view))
        write_map(csv, view.encoding, (map_rows(view, layer, head, pool, rows) for rows in parts))
    for path in (picture, csv):
        if path is not None:
            print(f"{path}: the map of {what}", file=sys.stderr)


def map_rows(
    view: "AttentionView", layer: int | None, head: int | None, pool: Pool | None, rows: slice
) -> "NDArray[np.float32]":
    """Some rows of the map of one head, or of that of ``pool``."""
    if pool is not None:
        return view.pooled(layer, pool, rows)
    assert layer is not None
    assert head is not None
    return view.probabilities(layer, head, rows)
