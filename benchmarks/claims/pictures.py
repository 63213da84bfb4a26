"""A picture per claim: means with 95 % intervals, over lengths or side by side. Needs matplotlib."""

import textwrap
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.ablation.statistics import mean_of
from benchmarks.claims.experiments import FREQUENCIES, Claim, Table
from benchmarks.claims.report import Runs, figures_of
from benchmarks.claims.results import UNTRAINED
from unmask.base.files import whole_file

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe & Ito 2008."""
RANDOM = "random weights"
LETTERS = 13
"""Letters of a title on an inch."""


def draw(claim: Claim, runs: Runs, path: Path) -> None:
    """Draw the tables of a claim, side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": claim.name, "svg.fonttype": "none", "font.size": 8}):
        tables = [table for table in claim.tables if table.drawn]
        width = 5.6 if len(tables) == 1 else 4.4 * len(tables)
        figure = Figure(figsize=(width, 3.2), layout="constrained")
        panels = figure.subplots(1, len(tables), squeeze=False)[0]
        for panel, table in zip(panels, tables, strict=True):
            (_lines if table.axis else _scatter if table.scattered else _dots)(panel, table, runs)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(color="#E5E5E5", lw=0.6)
            panel.set_axisbelow(True)
        title = textwrap.fill(f"Claim: {claim.says}", round(width * LETTERS))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        handles, labels = panels[0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside right center", fontsize=7, frameon=False)
        with whole_file(path) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})


def _lines(panel: Any, table: Table, runs: Runs) -> None:
    """One line per row over the columns, whose headers are numbers; baselines are dashed.

    Random weights would stretch the axis where word frequencies are the baseline, and are left out there.
    """
    rows = {
        label: row for label, row in table.rows.items() if not (RANDOM in label and FREQUENCIES in table.rows)
    }
    for (label, (variant, prefix)), color in zip(rows.items(), COLORS, strict=False):
        points = []
        for header, end in table.columns.items():
            mean = mean_of(list(figures_of(runs, variant, prefix + end).values()))
            if mean is not None:
                points.append((int(header.rstrip("x")), mean.mean, mean.half or 0.0))
        if points:
            x, y, spread = zip(*points, strict=True)
            style = "--" if RANDOM in label or label == FREQUENCIES else "-"
            panel.errorbar(x, y, yerr=spread, label=label, color=color, ls=style, marker="o", ms=3, capsize=2)
    panel.set_xscale("log", base=2)
    ticks = [int(header.rstrip("x")) for header in table.columns]
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.set_xlabel(table.axis)
    panel.set_title(table.title, loc="left", fontsize=8)


def _dots(panel: Any, table: Table, runs: Runs) -> None:
    """The first column, one dot per row, without baselines."""
    header, end = next(iter(table.columns.items()))
    labels = []
    for label, (variant, prefix) in table.rows.items():
        mean = mean_of(list(figures_of(runs, variant, prefix + end).values()))
        if mean is not None and not variant.endswith(UNTRAINED) and label != FREQUENCIES:
            spread = [mean.half or 0.0]
            panel.errorbar([mean.mean], [len(labels)], xerr=spread, fmt="o", color=COLORS[0], capsize=2)
            labels.append(label)
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.set_xlabel(f"{header}, {table.better} is better")


MOST_NAMED = 8
"""Dots that are named beside them; more get a legend."""


def _scatter(panel: Any, table: Table, runs: Runs) -> None:
    """The second column over the first, one dot per row; a baseline without the first is left out."""
    from matplotlib.ticker import MaxNLocator

    (x_header, x_end), (y_header, y_end) = list(table.columns.items())[:2]
    named = len(table.rows) <= MOST_NAMED
    styles = product("os^", COLORS)
    for label, (variant, prefix) in table.rows.items():
        x, y = (mean_of(list(figures_of(runs, variant, prefix + end).values())) for end in (x_end, y_end))
        if x is None or y is None or variant.endswith(UNTRAINED):
            continue
        spread = {"xerr": [x.half or 0.0], "yerr": [y.half or 0.0]}
        marker, color = ("o", COLORS[0]) if named else next(styles)
        panel.errorbar(
            [x.mean], [y.mean], **spread, fmt=marker, ms=4, color=color, capsize=2, lw=0.8,
            label=None if named else label,
        )  # fmt: skip
        if named:
            panel.annotate(label, (x.mean, y.mean), (4, 4), textcoords="offset points", fontsize=6)
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter("{x:,g}")
    panel.margins(x=0.15)
    panel.set_xlabel(x_header)
    panel.set_ylabel(f"{y_header}, {table.better} is better")
    panel.set_title(table.title, loc="left", fontsize=8)
