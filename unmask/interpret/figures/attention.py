"""Figures of one head, of all heads of a text, and of a quantity layer by layer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.attention.rectangles import Pool
from unmask.interpret.attention.view import AttentionView, Weight
from unmask.interpret.figures.paper import (
    COLUMN,
    KEY,
    MUTED,
    PAGE,
    QUERY,
    attention_colors,
    new_figure,
    paper_style,
)
from unmask.spec import AttentionPattern, FullAttention, SlidingWindow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TOKENS = 1024
"""Of a map."""
MOST_VECTORS = 96
"""Tokens up to which every cell is a vector; the cells of a longer text are one image."""
MOST_ARC_TOKENS = 64
POINTS = 72
"""Points per inch."""
SMALLEST_TYPE = 5.0
"""Points; where names would be smaller, positions are written instead."""
TICKS = (0.0, 0.01, 0.1, 0.5, 1.0)


def map_figure(
    view: AttentionView,
    layer: int,
    head: int,
    *,
    weight: Weight = "raw",
    width: float = COLUMN,
    map_NN: NDArray[np.float32] | None = None,
) -> "Figure":
    """The attention map of one head: queries down, keys across, colors on a square-root scale from 0 to 1.

    Args:
        view: the text.
        layer: from 0.
        head: from 0.
        weight: attention as it is, or weighted by the norms of values (Kobayashi et al. 2020).
        width: inches; `COLUMN` or `PAGE` of `unmask.interpret.figures.paper`.
        map_NN: drawn in place of the whole map, (queries, keys): the head's map without special tokens, or
            between the texts of a pair. ``weight`` names it.

    Raises:
        InvalidRequest: there is no such layer or head, the text is longer than `MOST_TOKENS` tokens, or
            ``map_NN`` has another shape.
        MissingExtra: matplotlib is not installed.
    """
    _check_length(view, MOST_TOKENS, "map")
    label = "attention" if weight == "raw" else "norm-weighted attention"
    if map_NN is None:
        map_NN = view.probabilities(layer, head, weight=weight)
    elif map_NN.shape != (len(view), len(view)):
        raise InvalidRequest(f"map_NN has shape {map_NN.shape}; the text has {len(view)} tokens")
    return _map(view, map_NN, label, width)


def pooled_figure(
    view: AttentionView,
    layer: int | None,
    pool: Pool = "mean",
    *,
    weight: Weight = "raw",
    width: float = COLUMN,
) -> "Figure":
    """The mean or maximum over the heads of a layer, or over all heads, as a map; see `map_figure`.

    Args:
        view: the text.
        layer: from 0; None means all layers.
        pool: ``mean`` or ``max``.
        weight: as in `map_figure`.
        width: inches.

    Raises:
        InvalidRequest: there is no such layer or pool, or the text is longer than `MOST_TOKENS` tokens.
        MissingExtra: matplotlib is not installed.
    """
    _check_length(view, MOST_TOKENS, "map")
    label = f"attention, {pool} over heads" if weight == "raw" else f"norm-weighted, {pool} over heads"
    return _map(view, view.pooled(layer, pool, weight=weight), label, width)


def _map(view: AttentionView, weights: NDArray[np.float32], label: str, width: float) -> "Figure":
    count = len(weights)
    with paper_style():
        from matplotlib.colors import PowerNorm

        figure = new_figure(width, 0.9 * width)
        axes = figure.add_subplot()
        edges = np.arange(count + 1) - 0.5
        cells = axes.pcolormesh(
            edges,
            edges,
            weights,
            cmap=attention_colors(),
            norm=PowerNorm(0.5, 0, 1),
            rasterized=count > MOST_VECTORS,
            edgecolors="none",
            antialiased=False,
        )
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("key", color=KEY)
        axes.set_ylabel("query", color=QUERY)
        _name_tokens(axes, view, 0.7 * width)
        bar = figure.colorbar(cells, ax=axes, shrink=0.6, pad=0.02, aspect=28, ticks=TICKS)
        bar.outline.set_visible(False)
        bar.ax.set_yticklabels([f"{tick:g}" for tick in TICKS])
        bar.set_label(label)
    return figure


def arcs_figure(
    view: AttentionView,
    layer: int,
    head: int,
    *,
    least: float = 0.1,
    weight: Weight = "raw",
    width: float = PAGE,
) -> "Figure":
    """One head as arcs over the words: from a query to a key, as strong as the attention.

    Attention to the token itself and to special tokens is not drawn.

    Args:
        view: the text.
        layer: from 0.
        head: from 0.
        least: weaker attention is not drawn.
        weight: as in `map_figure`.
        width: inches.

    Raises:
        InvalidRequest: there is no such layer or head, the text has more than `MOST_ARC_TOKENS` tokens, or
            ``least`` is not between 0 and 1.
        MissingExtra: matplotlib is not installed.
    """
    _check_length(view, MOST_ARC_TOKENS, "figure of arcs")
    if not 0 <= least <= 1:
        raise InvalidRequest(f"least is {least}; it must be from 0 to 1")
    weights = view.probabilities(layer, head, weight=weight)
    special = view.encoding.special
    count = len(weights)
    pairs = [(query, key) for query in range(count) for key in range(count) if query != key]
    edges = [pair for pair in pairs if weights[pair] >= least and not special[list(pair)].any()]
    farthest = max((abs(query - key) for query, key in edges), default=1)
    with paper_style():
        from matplotlib.patches import Arc

        height = width * farthest / count / 2 + 0.7
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        for query, key in edges:
            # An arc to a key on the left is blue, the color of queries; to the right, orange.
            axes.add_patch(
                Arc(
                    ((query + key) / 2, 0),
                    abs(query - key),
                    abs(query - key),
                    theta1=0,
                    theta2=180,
                    color=QUERY if key < query else KEY,
                    alpha=float(weights[query, key]),
                    linewidth=0.4 + 1.8 * float(weights[query, key]),
                    gid=f"arc {query} {key}",
                )
            )
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylim(0, farthest / 2 + 0.5)
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        _name_tokens(axes, view, width, rows=False)
        axes.tick_params(length=0)
        axes.set_title(
            f"layer {layer}, head {head}: attention from {least:g} on, to words before (blue) and after "
            "(orange)",
            color=MUTED,
            fontsize=7,
        )
    return figure


def grid_figure(
    values_RC: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    axes_names: tuple[str, str],
    label: str,
    *,
    width: float = COLUMN,
) -> "Figure":
    """Effects of interventions as a grid, such as tokens by layers: 0 is pale and 1 dark.

    Args:
        values_RC: one number for each cell; none (NaN) is left blank, and what is beyond 0 and 1 has the
            color of the nearer end.
        rows: their names.
        columns: their names.
        axes_names: what a row is and what a column is.
        label: the quantity and its unit.
        width: inches.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    count, height = len(rows), width * min(3.0, max(0.4, 0.8 * len(rows) / max(len(columns), 8)))
    with paper_style():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        cells = axes.pcolormesh(
            np.arange(len(columns) + 1) - 0.5,
            np.arange(count + 1) - 0.5,
            values_RC,
            cmap=attention_colors(),
            vmin=0,
            vmax=1,
            rasterized=count > MOST_VECTORS,
        )
        axes.invert_yaxis()
        size = min(7.0, 0.75 * POINTS * height / count)
        if size >= SMALLEST_TYPE:
            axes.set_yticks(range(count), rows, fontsize=size)
        axes.set_xticks(range(len(columns)), columns, fontsize=7)
        axes.tick_params(length=0)
        axes.set_ylabel(axes_names[0])
        axes.set_xlabel(axes_names[1])
        bar = figure.colorbar(cells, ax=axes, shrink=0.6, pad=0.02, aspect=28)
        bar.outline.set_visible(False)
        bar.set_label(label)
    return figure


def layers_figure(
    series: Mapping[str, Sequence[float]],
    label: str,
    *,
    first: str | None = None,
    width: float = COLUMN,
) -> "Figure":
    """A quantity layer by layer, one line per series.

    Args:
        series: the values of each layer by the name of the series; all of one length.
        label: the quantity and its unit.
        first: what the first value stands for if it is no layer, such as ``"emb."`` for the embeddings.
        width: inches.

    Raises:
        InvalidRequest: there is no value, or series have different lengths.
        MissingExtra: matplotlib is not installed.
    """
    lengths = {len(values) for values in series.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidRequest(f"series have {sorted(lengths)} values; give one for each layer, in each series")
    (count,) = lengths
    with paper_style():
        figure = new_figure(width, 0.62 * width)
        axes = figure.add_subplot()
        shades = attention_colors()(np.linspace(0.9, 0.4, len(series)))
        for (name, values), color, marker in zip(series.items(), shades, "os^Dv<>ph*" * count, strict=False):
            axes.plot(values, color=color, marker=marker, markersize=3, label=name)
        names = [str(at) for at in range(count)] if first is None else [first, *map(str, range(count - 1))]
        step = max(1, round(count / (3.5 * width)))
        axes.set_xticks(range(0, count, step), names[::step])
        axes.set_xlabel("layer")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False)
    return figure


def heads_figure(view: AttentionView, *, width: float = PAGE) -> "Figure":
    """Every head of a text of any length, by layer: mean distance, entropy, and the strongest sink.

    A dot is a head and the line the mean of a layer's heads. Distances are in tokens, and like sinks on a
    logarithmic scale, with gray lines at those of uniform attention (in full and sliding-window layers).
    Entropies are shares of that of uniform attention over the keys that a query sees. The sink of a
    head is the token that receives most attention, mean over all queries. The text
    is measured if it was not before.

    Args:
        view: the text.
        width: inches.

    Raises:
        MissingExtra: matplotlib is not installed.
        NonFiniteResult: attention of this text is infinite or not a number.
    """
    statistics = view.statistics()
    layers = [statistics.layer(number) for number in range(view.layer_count)]
    panels = {
        "mean distance (tokens)": [layer.distance_HN.mean(1, dtype=np.float64) for layer in layers],
        "entropy (share)": [layer.entropy_share_HN.mean(1, dtype=np.float64) for layer in layers],
        "strongest sink (attention)": [layer.attention_received_HN.max(1) for layer in layers],
    }
    with paper_style():
        figure = new_figure(width, 0.34 * width)
        from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

        for place, (label, values) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            for layer, of_heads in enumerate(values):
                at = [layer] * len(of_heads)
                axes.plot(at, of_heads, "o", markersize=2, alpha=0.6, color=KEY)
            axes.plot(range(len(values)), [of_heads.mean() for of_heads in values], color=QUERY)
            if place == 2:
                axes.set_ylim(0, 1)
            else:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter("{x:g}")  # without signs of formulas
                axes.yaxis.set_minor_locator(NullLocator())
            if place == 3:
                uniform = axes.axhline(1 / len(view), color=MUTED, linewidth=0.8)
                axes.legend([uniform], ["uniform attention"], frameon=False)
            for layer, spec in enumerate(view.cache.encoder.spec.layers):
                far = _uniform_distance(getattr(spec.mixer, "pattern", FullAttention()), len(view))
                if place == 1 and far is not None:
                    axes.hlines(far, layer - 0.4, layer + 0.4, color=MUTED, linewidth=0.8)
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.set_xlabel("layer")
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _uniform_distance(pattern: AttentionPattern, length: int) -> float | None:
    """The mean distance of uniform attention, over the queries of a text; None of other patterns."""
    match pattern:
        case FullAttention():
            return (length**2 - 1) / (3 * length)
        case SlidingWindow(radius=radius, dilation=dilation):
            at = np.arange(length)
            left, right = (np.minimum(radius, side // dilation) for side in (at, length - 1 - at))
            sums = dilation * (left * (left + 1) + right * (right + 1)) / 2
            return float((sums / (1 + left + right)).mean())
        case _:
            return None


def _name_tokens(axes: "Axes", view: AttentionView, inches: float, *, rows: bool = True) -> None:
    """Write the tokens at an axis or both, or positions where they do not fit."""
    count = len(view)
    size = min(7.0, 0.85 * POINTS * inches / count)
    if size < SMALLEST_TYPE:
        return
    names = [view.encoding.surface(at) for at in range(count)]
    axes.set_xticks(range(count), names, rotation=90, fontsize=size)
    if rows:
        axes.set_yticks(range(count), names, fontsize=size)
    axes.tick_params(length=0)


def _check_length(view: AttentionView, most: int, what: str) -> None:
    if len(view) > most:
        raise InvalidRequest(
            f"the text has {len(view):,} tokens, and a {what} shows at most {most:,}; give a part of the text"
        )
