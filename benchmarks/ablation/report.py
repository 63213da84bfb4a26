"""The combined results of an experiment's runs: means with intervals, and differences from the parent."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ablation.cost import Cost, read_costs
from benchmarks.ablation.figures import FIGURES, MASKED, Figures, read_figures
from benchmarks.ablation.plan import Plan, read_plan
from benchmarks.ablation.statistics import Mean, mean_of, paired
from benchmarks.ablation.variants import VARIANTS, Variant, build_variant
from unmask.errors import InvalidRequest


@dataclass(frozen=True)
class Measure:
    """A figure of a run by which variants are compared."""

    name: str
    title: str
    of: Callable[[Figures], float | None]
    form: str
    """A format specification, as for `format`."""
    lower: bool = False
    """Whether lower is better."""

    def shown(self, value: float) -> str:
        """The value formatted for display."""
        return format(value, self.form)


MEASURES = (
    Measure("masked_loss", "masked loss, nats", lambda one: one.masked_loss, ".3f", lower=True),
    Measure("blimp", "BLiMP accuracy", lambda one: one.blimp, ".3f"),
    Measure("tagging", "tagging accuracy", lambda one: one.tagging, ".3f"),
)


@dataclass(frozen=True)
class Outcome:
    """One measure of one variant."""

    measure: str
    mean: Mean
    against_parent: Mean | None
    """Over the seeds of both; None without a parent, or if the two figures are not comparable."""
    note: str | None = None


@dataclass(frozen=True)
class Row:
    """One variant."""

    variant: str
    parent: str | None
    change: str
    source: str
    parameters: int
    feedforward: int
    """The width that makes parameter counts equal."""
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    cost: Cost | None

    def outcome(self, measure: str) -> Outcome | None:
        """The outcome of that measure, or None."""
        return next((one for one in self.outcomes if one.measure == measure), None)


@dataclass(frozen=True)
class Report:
    """The finished part of an experiment."""

    plan: Plan
    rows: tuple[Row, ...]
    tokens: int
    """Training tokens of each run."""
    threads: int | None
    """Threads used to measure costs."""
    unigram_loss: float | None
    tagging_baseline: float | None


def make_report(out: Path) -> Report:
    """Make the report from the finished runs in an experiment's folder.

    Raises:
        InvalidRequest: there is no experiment, or none of its runs is finished.
    """
    plan, costs = read_plan(out), read_costs(out)
    found = [read_figures(path) for path in sorted((out / "runs").glob(f"*/{FIGURES}"))]
    runs = [one for one in found if one is not None]
    if not runs:
        raise InvalidRequest(
            f"no run in {out} is finished; resume it with python -m benchmarks.ablation --output {out}"
        )
    of_variant = {one.variant: one for one in (costs.variants if costs else ())}
    rows = tuple(
        _row(variant, runs, plan, of_variant.get(variant.name))
        for variant in VARIANTS
        if any(one.variant == variant.name for one in runs)
    )
    return Report(
        plan=plan,
        rows=rows,
        tokens=round(sum(one.tokens for one in runs) / len(runs)),
        threads=costs.threads if costs else None,
        unigram_loss=_first(one.unigram_loss for one in runs),
        tagging_baseline=_first(one.tagging_baseline for one in runs),
    )


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _row(variant: Variant, runs: Sequence[Figures], plan: Plan, cost: Cost | None) -> Row:
    own = [one for one in runs if one.variant == variant.name]
    above = [one for one in runs if one.variant == variant.parent]
    outcomes = [_outcome(measure, own, above) for measure in MEASURES]
    return Row(
        variant=variant.name,
        parent=variant.parent,
        change=variant.change,
        source=variant.source,
        parameters=own[0].parameters,
        feedforward=build_variant(variant.name, plan.sizes).encoder.layers[0].feedforward.width,
        seeds=tuple(sorted(one.seed for one in own)),
        outcomes=tuple(one for one in outcomes if one is not None),
        cost=cost,
    )


def _outcome(measure: Measure, own: Sequence[Figures], above: Sequence[Figures]) -> Outcome | None:
    ours, theirs = (
        {one.seed: value for one in runs if (value := measure.of(one)) is not None} for runs in (own, above)
    )
    mean = mean_of(list(ours.values()))
    if mean is None:
        return None
    note = own[0].blimp_score if measure.name == "blimp" and own[0].blimp_score != MASKED else None
    alike = note is None or all(one.blimp_score == note for one in above)
    return Outcome(measure.name, mean, paired(ours, theirs) if alike else None, note)


def describe(report: Report) -> str:
    """Describe in a sentence or two what is equal in all runs."""
    plan = report.plan
    sizes, training = plan.sizes, plan.training
    return (
        f"Width {sizes.width}, {sizes.layers} layers, {sizes.heads} heads, vocabulary {sizes.vocabulary:,}, "
        f"texts of at most {sizes.tokens} tokens; {training.steps:,} steps of {training.batch_tokens:,} "
        f"tokens, {report.tokens:,} tokens in total, none repeated."
    )


def findings(report: Report) -> list[str]:
    """One sentence per difference between a variant and its parent whose 95 % interval excludes zero."""
    made = []
    for row in report.rows:
        for measure in MEASURES:
            outcome = row.outcome(measure.name)
            if outcome is None or outcome.against_parent is None or not outcome.against_parent.clear:
                continue
            gap = outcome.against_parent
            assert gap.half is not None
            better = (gap.mean < 0) == measure.lower
            made.append(
                f"{row.variant} compared with {row.parent}: {measure.title} {signed(measure, gap.mean)} "
                f"± {measure.shown(gap.half)}, {'better' if better else 'worse'}"
            )
    return made


def signed(measure: Measure, value: float) -> str:
    """A difference with its sign."""
    return format(value, f"+{measure.form}")


def shown(measure: Measure, mean: Mean | None, *, difference: bool = False) -> str:
    """A mean with its interval, formatted for display; empty where there is none."""
    if mean is None:
        return ""
    number = signed(measure, mean.mean) if difference else measure.shown(mean.mean)
    return number if mean.half is None else f"{number} ± {measure.shown(mean.half)}"
