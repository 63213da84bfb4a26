"""An ablation report as a Markdown page."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from benchmarks.ablation.cost import Cost
from benchmarks.ablation.figures import DETECTED
from benchmarks.ablation.report import MEASURES, Report, Row, describe, findings, shown
from benchmarks.ablation.statistics import Mean

HEAD = """# From BERT to ModernBERT, one change at a time

From BERT to its successors, many things changed at once: data, size, length of training, and architecture.
Here one thing changes at a time. Every variant is trained on the same text in the same order, with the same
tokenizer, the same number of steps and the same optimizer, and feed-forward networks are made wider or
narrower until all variants have the same number of parameters, to within 1 %. A variant differs from its
parent only in the one change that the table names.

Positions are changed first: in so short a training, learned positions keep an encoder close to what word
frequencies alone predict, and further changes on top of them have no visible effect.
"""

METHOD = """## What is measured

- **Masked loss**: cross-entropy in nats on held-out text, with 15 % of each window's tokens replaced by the
  mask token, the same ones for every variant. Lower is better.
- **BLiMP** (Warstadt et al. 2020): the share of minimal pairs whose grammatical sentence has the higher
  pseudo-log-likelihood (Salazar et al. 2020); {pairs} pairs of each paradigm; ties count as wrong; chance
    is 0.5.
- **Tagging**: part-of-speech accuracy on the English Web Treebank of a linear probe on frozen hidden states,
  for the layer that is best on dev; the first {sentences} sentences of each split.
- **Speed**: training steps of all variants, interleaved in one process, in tokens per second of CPU
  time{threads}.
- **Memory**: peak memory of an encoder with its optimizer during its first steps, each variant in
  processes of its own: weights, gradients, optimizer moments and intermediate results.

Means are over seeds, with 95 % intervals by Student's t. A seed determines initial weights, masks and the
order of text, so two variants with the same seed read the same text. Differences from the parent are taken
seed by seed, and their intervals are intervals of those differences. They describe the variation over seeds,
not over sizes, texts or learning rates.
"""

LIMITS = """## What this does not show

- The encoders are tiny and see little text. What helps at this size need not help at a thousand times the
  size, and vice versa: learned positions, for example, take long to learn, so a variant with built-in
  relative distance is ahead early.
- All variants use the same learning rate. It was not tuned for each.
- Texts are short, so sliding windows and linear attention, which save time on long texts, show their cost
  here and not their gain.
- `shared` has fewer parameters, because its claim is the same computation with fewer (Lan et al. 2020).
- `replaced-token` cannot predict masked words. Its masked loss is left out, and BLiMP sentences are
  compared by the {detected}, token by token: a different score, which must not be ranked with the others.
  Its generator counts toward speed and memory, but not toward the number of parameters.
- With this many comparisons, about one interval in twenty excludes zero by chance alone.
"""


WIDTH = 118
"""Width of the page's lines, except in tables and headings."""


def page(report: Report, picture: str | None, notes: str = "") -> str:
    """The whole page.

    Args:
        report: of a finished or unfinished experiment.
        picture: path of the picture relative to the page; None for no picture.
        notes: Markdown written by whoever ran the experiment, placed after the figures.
    """
    return "\n".join(map(_wrapped, _parts(report, picture, notes)))


def _parts(report: Report, picture: str | None, notes: str) -> Iterator[str]:
    effort = report.plan.effort
    threads = "" if report.threads is None else f", {report.threads} thread{'s' * (report.threads > 1)}"
    yield HEAD
    counts = sorted({len(row.seeds) for row in report.rows})
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    yield f"{describe(report)} Runs of each variant: {runs}.\n"
    command = "python -m benchmarks.ablation"
    yield f"Measured by `{command}` and `{command} cost`; `{command} report` writes this page.\n"
    if picture is not None:
        yield f"![Every variant's measurements, with their intervals]({picture})\n"
    yield "## The variants\n"
    yield from _table(
        ("variant", "parent", "change", "source", "parameters", "feed-forward", "n"),
        (
            (
                f"`{row.variant}`",
                f"`{row.parent}`" if row.parent else "",
                row.change,
                row.source,
                f"{row.parameters:,}",
                str(row.feedforward),
                str(len(row.seeds)),
            )
            for row in report.rows
        ),
    )
    yield "## Results\n"
    yield from _table(
        ("variant", *(one.title for one in MEASURES), "tokens/s", "memory, MiB"), map(_results, report.rows)
    )
    yield _baselines(report)
    yield "## Differences from the parent\n"
    yield "Mean difference over the same seeds; intervals that exclude zero are bold.\n"
    yield from _table(
        ("variant", "parent", *(one.title for one in MEASURES), "speed", "memory"),
        (_differences(row, report) for row in report.rows if row.parent),
    )
    yield _said(findings(report))
    if notes:
        yield f"{notes.strip()}\n"
    yield METHOD.format(pairs=effort.pairs, sentences=effort.sentences, threads=threads)
    yield LIMITS.format(detected=DETECTED)


def _wrapped(part: str) -> str:
    """Fill paragraphs and list items to the line width."""
    if part.startswith(("|", "!")):
        return part
    paragraphs = [re.split(r"\n(?=- )", one) for one in part.rstrip("\n").split("\n\n")]
    end = "\n" if part.endswith("\n") else ""
    return "\n\n".join("\n".join(map(_filled, items)) for items in paragraphs) + end


def _filled(text: str) -> str:
    inner = "  " if text.startswith("- ") else ""
    plain = " ".join(text.split())
    return textwrap.fill(
        plain, WIDTH, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _results(row: Row) -> list[str]:
    cells = [f"`{row.variant}`"]
    for measure in MEASURES:
        outcome = row.outcome(measure.name)
        cell = "" if outcome is None else shown(measure, outcome.mean)
        cells.append(f"({cell})" if outcome is not None and outcome.note else cell)
    if row.cost is None:
        return [*cells, "", ""]
    return [*cells, f"{row.cost.tokens_per_second:,.0f}", mebibytes(row.cost)]


def _differences(row: Row, report: Report) -> list[str]:
    cells = [f"`{row.variant}`", f"`{row.parent}`"]
    for measure in MEASURES:
        outcome = row.outcome(measure.name)
        gap: Mean | None = None if outcome is None else outcome.against_parent
        cell = shown(measure, gap, difference=True)
        cells.append(f"**{cell}**" if gap is not None and gap.clear else cell)
    above = next((one for one in report.rows if one.variant == row.parent), None)
    return [*cells, *_ratios(row.cost, above.cost if above is not None else None)]


def _ratios(ours: Cost | None, theirs: Cost | None) -> tuple[str, str]:
    if ours is None or theirs is None:
        return "", ""
    speed = f"{ours.tokens_per_second / theirs.tokens_per_second:.2f} x"
    if ours.peak_bytes is None or theirs.peak_bytes is None:
        return speed, ""
    return speed, f"{ours.peak_bytes / theirs.peak_bytes:.2f} x"


def mebibytes(cost: Cost) -> str:
    """Format the peak memory for display; empty where it is unknown."""
    return "" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:.0f}"


def _baselines(report: Report) -> str:
    said = []
    if report.unigram_loss is not None:
        loss = f"{report.unigram_loss:.3f}"
        said.append(f"predicting masked words by their frequency in that text alone gives a loss of {loss}")
    if report.tagging_baseline is not None:
        right = f"{report.tagging_baseline:.3f}"
        said.append(f"giving each word its most frequent tag is right {right} of the time")
    brackets = any(outcome.note for row in report.rows for outcome in row.outcomes)
    also = " In brackets: a different score, see below." if brackets else ""
    line = "; ".join(said)
    return f"Baselines: {line}.{also}\n" if line else f"{also.strip()}\n"


def _said(sentences: list[str]) -> str:
    if not sentences:
        return "No difference has an interval that excludes zero.\n"
    return "\n".join(["Differences whose interval excludes zero:\n", *(f"- {one}" for one in sentences), ""])
