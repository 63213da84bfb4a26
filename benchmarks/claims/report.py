"""Write the tables of docs/claims.md and a picture per claim from the result files.

python -m benchmarks.claims.report                 # rewrite docs/claims.md and its pictures
python -m benchmarks.claims.report --results DIR   # from other results
"""

import re
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.ablation.statistics import Mean, mean_of, paired
from benchmarks.claims.experiments import CLAIMS, EXPERIMENTS, MARGIN, Claim, Comparison, Correlation, Table
from benchmarks.claims.results import RESULTS, Result, read_all
from unmask.bench.benchmark_model import spearman

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "claims.md"
BLOCK = re.compile(
    r"<!-- (?P<name>[\w-]+): written by benchmarks\.claims\.report -->\n.*?<!-- end -->", re.DOTALL
)
Runs = Mapping[str, Mapping[int, Result]]
SEEDS = 3
"""Fewer give no verdict."""
LEAST_VARIANTS = 4
"""Fewer give no correlation."""


def figures_of(runs: Runs, variant: str, figure: str) -> dict[int, float]:
    """A figure of every seed that has it.

    ``unigram:`` before a loss is the loss of word frequencies; other figures have none.
    """
    if figure.startswith("unigram:"):
        figure = "unigram" if "loss" in figure else ""
    found = runs.get(variant, {}).items()
    return {seed: one.figures[figure] for seed, one in found if figure in one.figures}


def cell(mean: Mean | None) -> str:
    """A mean with its interval."""
    if mean is None:
        return ""
    if mean.mean == int(mean.mean) and mean.mean > 1000:
        return f"{mean.mean:,.0f}"
    return f"{mean.mean:.3f}" if mean.half is None else f"{mean.mean:.3f} ± {mean.half:.3f}"


def table(wanted: Table, runs: Runs) -> list[str]:
    """A table in Markdown; nothing if no run has its figures."""
    lines = [f"**{wanted.title}**", ""] if wanted.title else []
    lines += [f"| | {' | '.join(wanted.columns)} | n |", f"|---|{'---:|' * len(wanted.columns)}---:|"]
    empty = True
    for label, (variant, prefix) in wanted.rows.items():
        every = [figures_of(runs, variant, prefix + end) for end in wanted.columns.values()]
        if any(every):
            cells = [cell(mean_of(list(one.values()))) for one in every]
            lines.append(f"| {label} | {' | '.join(cells)} | {min(len(one) for one in every if one)} |")
            empty = False
    return [] if empty else [*lines, ""]


def difference(one: Comparison | Correlation, runs: Runs) -> Mean | None:
    """The mean difference over the seeds of both, or the mean correlation; None if it was not run."""
    if isinstance(one, Correlation):
        return mean_of(correlations(one, runs))
    return paired(figures_of(runs, *one.ours), figures_of(runs, *one.theirs))


def correlations(one: Correlation, runs: Runs) -> list[float]:
    """The rank correlation of each of the first `SEEDS` seeds, over the variants that have all of them."""
    points = [points_of(one, runs, variant) for variant in one.variants]
    whole_VP2 = np.array([some for some in points if len(some) == SEEDS])
    if len(whole_VP2) < LEAST_VARIANTS:
        return []
    return [spearman(*whole_VP2[:, seed].T) for seed in range(SEEDS)]


def points_of(one: Correlation, runs: Runs, variant: str) -> list[tuple[float, float]]:
    """Both figures of each of the first `SEEDS` seeds that has both."""
    x, y = (figures_of(runs, variant, figure) for figure in one.figures)
    return [(x[seed], y[seed]) for seed in range(1, SEEDS + 1) if seed in x and seed in y]


def verdict(one: Comparison | Correlation, runs: Runs) -> str:
    """Whether the interval of the difference lies where the claim says, elsewhere, or on both sides.

    Empty if the claim says nothing of the difference.
    """
    found = difference(one, runs)
    if one.said is None:
        return ""
    if found is None or found.half is None or found.count < SEEDS:
        return "undecided"
    low, high = found.mean - found.half, found.mean + found.half
    if one.said == "higher":
        low, high = -high, -low
    limit = MARGIN if one.said == "not higher" else 0.0
    return "holds" if high < limit else "does not hold" if low > limit else "undecided"


def was_run(claim: Claim, runs: Runs) -> bool:
    """Whether there are results of what the claim is about."""
    return any(difference(one, runs) for one in claim.comparisons if one.said is not None)


def not_run(claim: Claim, runs: Runs) -> list[str]:
    """The variants of a claim without the figures that it compares, or with too few seeds for a verdict."""
    wanted: dict[str, set[str]] = {variant: set() for variant in claim.variants}
    for one in claim.comparisons:
        if isinstance(one, Correlation):
            for variant in one.variants:
                wanted[variant] |= set(one.figures)
        else:
            for variant, figure in (one.ours, one.theirs):
                wanted.setdefault(variant, set()).add(figure)
    lines = []
    for variant, figures in wanted.items():
        count = min((len(figures_of(runs, variant, figure)) for figure in figures), default=SEEDS)
        if count < SEEDS:
            lines.append(f"`{variant}`" + (f" (only {count} of {SEEDS} seeds)" if count else ""))
    return lines


def trained_for(claim: Claim, runs: Runs) -> list[Result]:
    """The runs of a claim, without random weights."""
    return [one for variant in claim.variants for one in runs.get(variant, {}).values()]


def overall(claim: Claim, runs: Runs) -> str:
    """The verdict on a claim: that of its comparisons if they agree; those that were not run are counted."""
    if not was_run(claim, runs):
        return "not run yet"
    said = [one for one in claim.comparisons if one.said is not None]
    ran = [one for one in said if difference(one, runs) is not None]
    every = {verdict(one, runs) for one in ran}
    mixed = "holds in part" if "holds" in every else "does not hold"
    found = every.pop() if len(every) == 1 else mixed
    return found if len(ran) == len(said) else f"{found} ({len(ran)} of {len(said)} comparisons run)"


def block(claim: Claim, runs: Runs) -> str:
    """Everything that the results say about a claim, in Markdown."""
    if not was_run(claim, runs):
        return f"Not run yet: `python -m benchmarks.claims --only {claim.name}`.\n"
    trained = trained_for(claim, runs)
    tokens = trained[0].tokens
    seconds = sum(one.cpu_seconds for one in trained)
    lines = [f"{len(trained)} runs of {tokens:,} tokens, {seconds:.0f} s of one core in all.", ""]
    if missing := not_run(claim, runs):
        lines += [f"Not run: {', '.join(missing)}.", ""]
    for wanted in claim.tables:
        lines += table(wanted, runs)
    lines += ["| difference, seed by seed | mean | the claim says | verdict |", "|---|---:|---|---|"]
    for one in claim.comparisons:
        if (found := difference(one, runs)) is not None:
            sign = "+" if found.mean > 0 else ""
            lines.append(f"| {one.text} | {sign}{cell(found)} | {one.said or ''} | {verdict(one, runs)} |")
    lines += ["", f"![{claim.says}: means with 95 % intervals](pictures/claims-{claim.name}.svg)", ""]
    return "\n".join(lines)


def summary(every: Mapping[str, Runs]) -> str:
    """One line per claim."""
    lines = ["| claim | source | verdict | runs |", "|---|---|---|---:|"]
    for claim in CLAIMS:
        runs = every[claim.experiment]
        count = len(trained_for(claim, runs)) if was_run(claim, runs) else 0
        link = f"[{claim.says}](#{claim.name})"
        lines.append(f"| {link} | {claim.source} | {overall(claim, runs)} | {count} |")
    return "\n".join([*lines, ""])


def blocks(results: Path) -> dict[str, str]:
    """The generated parts of the page by name."""
    every = {name: read_all(results, name) for name in EXPERIMENTS}
    return {
        "summary": summary(every),
        **{claim.name: block(claim, every[claim.experiment]) for claim in CLAIMS},
    }


def filled(page: str, results: Path) -> str:
    """The page with its generated parts replaced."""
    made = blocks(results)

    def written(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- {name}: written by benchmarks.claims.report -->\n{made[name]}<!-- end -->"

    return BLOCK.sub(written, page)


def main() -> None:
    """Rewrite the page and the pictures."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), given.results), encoding="utf-8")
    from benchmarks.claims.pictures import draw

    for claim in CLAIMS:
        runs = read_all(given.results, claim.experiment)
        if was_run(claim, runs):
            draw(claim, runs, DOCS / "pictures" / f"claims-{claim.name}.svg")


if __name__ == "__main__":
    main()
