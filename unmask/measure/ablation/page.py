"""A report as a page of Markdown."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from unmask.measure.ablation.cost import Cost
from unmask.measure.ablation.figures import DETECTED
from unmask.measure.ablation.report import MEASURES, Report, Row, describe, findings, shown
from unmask.measure.ablation.statistics import Mean

HEAD = """# The line as an experiment

From BERT to its successors, many things changed at once: data, size, length of training, and the design.
Here one thing changes at a time. Every design is trained on the same text in the same order, with the same
tokenizer, the same number of steps and the same optimizer, and feed-forward networks are made wider or
narrower until all have the same number of parameters, to within 1 %. What differs between a design and its
parent is the one thing that the table names.

Positions come first among the changes: in so short a training, learned ones keep an encoder near what the
frequencies of words alone foretell, and what is changed beside them does not show.
"""

METHOD = """## What is measured

- **Masked loss**: cross-entropy in nats of held-out text, 15 % of each window's tokens masked, all of them
  by the mask token, the same ones for every design. Less is better.
- **BLiMP** (Warstadt et al. 2020): the share of minimal pairs whose grammatical sentence has the higher
  pseudo-log-likelihood (Salazar et al. 2020); {pairs} pairs of each paradigm; ties are wrong; 0.5 is
  chance.
- **Tagging**: parts of speech of English Web Treebank by a linear probe on frozen states, of the layer that
  is best on dev; the first {sentences} sentences of each part.
- **Speed**: training steps of all designs in turn in one process, in tokens a second of processor
  time{threads}.
- **Memory**: the most that an encoder with its optimizer and its first steps held at once, each design in
  processes of its own: weights, gradients, moments and intermediate results.

Means are over seeds, with 95 % intervals by Student's t. A seed decides fresh weights, masks and the order
of text, so two designs with the same seed read the same text; differences to the parent are taken seed by
seed, and their intervals are of those differences. They say how far other seeds would go. They do not say
how far other sizes, texts or learning rates would.
"""

LIMITS = """## What this does not show

- The encoders are tiny and see little text. What helps at this size need not help at a thousand times the
  size, and the other way round: learned positions, for one, take long to learn, and a design that knows
  what is near from the start is ahead early.
- One learning rate serves all designs. It was not tuned for each.
- Texts are short, so what saves time on long ones, windows and linear attention, can show its cost here and
  not its gain.
- `shared` has fewer parameters, since its claim is the same computation with fewer (Lan et al. 2020).
- `replaced-token` cannot predict masked words. Its masked loss is left out, and sentences of BLiMP are
  compared by the {detected}, token by token: another score than the others', and not to be ranked with
  them. Its generator's work counts in speed and memory, its generator's parameters do not count.
- Among so many comparisons, about one in twenty leaves out zero by chance alone.
"""


WIDTH = 118
"""Of the page's lines, those of tables and headings apart."""


def page(report: Report, picture: str | None, notes: str = "") -> str:
    """The whole page.

    Args:
        report: of an experiment, finished or not.
        picture: where the page finds its picture; None for none.
        notes: Markdown of whoever made the experiment, put behind the figures.
    """
    return "\n".join(map(_wrapped, _parts(report, picture, notes)))


def _parts(report: Report, picture: str | None, notes: str) -> Iterator[str]:
    effort = report.plan.effort
    threads = "" if report.threads is None else f", {report.threads} thread{'s' * (report.threads > 1)}"
    yield HEAD
    counts = sorted({len(row.seeds) for row in report.rows})
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    yield f"{describe(report)} Runs of each design: {runs}.\n"
    yield "Made by `unmask ablate` and `unmask ablate cost`; `unmask ablate report` writes this page.\n"
    if picture is not None:
        yield f"![Every design's measures, with their intervals]({picture})\n"
    yield "## The designs\n"
    yield from _table(
        ("design", "parent", "what is changed", "after", "parameters", "feed-forward", "n"),
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
        ("design", *(one.title for one in MEASURES), "tokens/s", "memory, MiB"), map(_results, report.rows)
    )
    yield _baselines(report)
    yield "## Against the parent\n"
    yield "Mean difference over the same seeds; intervals that leave out zero are bold.\n"
    yield from _table(
        ("design", "parent", *(one.title for one in MEASURES), "speed", "memory"),
        (_differences(row, report) for row in report.rows if row.parent),
    )
    yield _said(findings(report))
    if notes:
        yield f"{notes.strip()}\n"
    yield METHOD.format(pairs=effort.pairs, sentences=effort.sentences, threads=threads)
    yield LIMITS.format(detected=DETECTED)


def _wrapped(part: str) -> str:
    """Its paragraphs and items in lines of equal width."""
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
    """Peak memory for people; empty where it is not known."""
    return "" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:.0f}"


def _baselines(report: Report) -> str:
    said = []
    if report.unigram_loss is not None:
        loss = f"{report.unigram_loss:.3f}"
        said.append(f"guessing masked words by nothing but their frequency in that text has a loss of {loss}")
    if report.tagging_baseline is not None:
        said.append(f"giving each word its commonest tag is right {report.tagging_baseline:.3f} of the time")
    brackets = any(outcome.note for row in report.rows for outcome in row.outcomes)
    also = " In brackets: another score, see below." if brackets else ""
    line = "; ".join(said)
    return f"To compare with: {line}.{also}\n" if line else f"{also.strip()}\n"


def _said(sentences: list[str]) -> str:
    if not sentences:
        return "No difference's interval leaves out zero.\n"
    return "\n".join(["Those that leave out zero:\n", *(f"- {one}" for one in sentences), ""])
