"""``unmask evaluate dependencies`` and ``coreference``: attention heads against gold trees and chains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, print_legend, progress, safe, table

if TYPE_CHECKING:
    from unmask.evaluate.probes.coreference import CoreferenceResult
    from unmask.evaluate.probes.dependencies import DependencyResult
    from unmask.evaluate.probes.head_accuracy import Accuracy

CacheOption = Annotated[
    Path | None,
    Parameter(name="--cache", help="a file where progress is kept; run again, it is resumed from there"),
]


def dependencies(
    *,
    model: ModelOption = "default",
    data: Annotated[Path, Parameter(name="--data", help="a .conllu file, which may be compressed")],
    run: RunOptions = RUN,
    limit: Annotated[int | None, Parameter(help="only the first N sentences")] = None,
    cache: CacheOption = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Attention heads and gold trees: is the most attended word the head? No training."""
    output.check()
    from unmask.evaluate.probes.dependencies import measure_dependencies, read_trees

    trees = read_trees(data, limit)
    loaded = run.load(model)
    with progress("sentences", len(trees)) as report:
        result = measure_dependencies(
            loaded, trees, data=data.name, cache=cache, watch=lambda _, done, of: report(done, of)
        )
    output.finish(result, _show_dependencies)


def _show_dependencies(result: "DependencyResult") -> None:
    screen = console()
    right = ("links", "accuracy", "95 % interval", "baseline", "difference", "p")
    shown = table(
        None, "relation", "links", "best head", "accuracy", "95 % interval", "offset", "baseline",
        "difference", "p", "", right=right,
    )  # fmt: skip
    few = []
    for one in result.relations:
        compared = one.comparison
        if compared is None or one.head is None:
            few.append(f"{one.relation} {one.links}")
            continue
        layer, head, direction = one.head
        shown.add_row(
            safe(one.relation),
            f"{one.links:,}",
            f"{layer}.{head} {direction}",
            f"{compared.head.measured.value:.3f}",
            interval(compared.head.measured),
            f"{one.offset:+d}",
            f"{compared.baseline.measured.value:.3f}",
            f"{compared.difference.value:+.3f} ({interval(compared.difference)})",
            f"{compared.p_holm:.4f}",
            "better" if compared.better else "",
        )
    screen.print(shown)
    screen.print(
        safe(
            f"{result.model}, {result.dtype}, on {result.data}: {result.sentences:,} sentences, "
            f"{result.layers} layers of {result.heads} heads"
        )
    )
    if result.too_long or result.without_token:
        screen.print(
            f"left out: {result.too_long:,} sentences that are too long, {result.without_token:,} links of "
            "words without a token"
        )
    if few:
        screen.print(safe(f"too few links to choose and measure: {', '.join(few)}"))
    print_legend(LEGEND)


LEGEND = """\
best head  LAYER.HEAD, both from 0. to head: the word the dependent attends to
           most is its head; from head: the word that attends most to the
           dependent is. Special tokens and the word itself are not counted
baseline   the word at a fixed offset from the dependent
Head and offset are chosen on one half of the sentences; everything shown is
measured on the other. p: sign-flip test over sentences, corrected for the number
of relations (Holm); better: p below 0.05. Every head, with intervals: --json"""


def coreference(
    *,
    model: ModelOption = "default",
    data: Annotated[
        Path, Parameter(name="--data", help="a file in the form of CoNLL-2012, or a folder of *conll files")
    ],
    run: RunOptions = RUN,
    limit: Annotated[int | None, Parameter(help="only the first N documents")] = None,
    cache: CacheOption = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Attention heads and gold chains: is the most attended earlier mention an antecedent? No training."""
    output.check()
    from unmask.evaluate.probes.coreference import measure_coreference, read_coreference

    documents = read_coreference(data, limit)
    loaded = run.load(model)
    with progress("windows", len(documents)) as report:
        result = measure_coreference(
            loaded, documents, data=data.name, cache=cache, watch=lambda _, done, of: report(done, of)
        )
    output.finish(result, _show_coreference)


def _show_coreference(result: "CoreferenceResult") -> None:
    screen = console()
    right = ("mentions", "accuracy", "95 % interval", "nearest", "same head", "chance", "difference", "p")
    shown = table(None, "mentions of", "best head", *right, "", right=right)
    for one in result.kinds:
        compared = one.comparison
        baselines = (*(f"{value:.3f}" for value in one.baselines.values()), f"{one.chance:.3f}")
        if compared is None or one.head is None:
            shown.add_row(one.kind, "too few", f"{one.mentions:,}", "", "", *baselines, "", "", "")
            continue
        shown.add_row(
            one.kind,
            f"{one.head[0]}.{one.head[1]}",
            f"{one.mentions:,}",
            f"{compared.head.measured.value:.3f}",
            interval(compared.head.measured),
            *baselines,
            f"{compared.difference.value:+.3f} ({interval(compared.difference)})",
            f"{compared.p_holm:.4f}",
            "better" if compared.better else "",
        )
    screen.print(shown)
    screen.print(
        safe(
            f"{result.model}, {result.dtype}, on {result.data}: {result.documents:,} documents in "
            f"{result.windows:,} windows, {result.mentions:,} mentions; {result.outside:,} have antecedents "
            f"outside their window only; {result.too_long:,} sentences are too long"
        )
    )
    print_legend(COREFERENCE_LEGEND)


COREFERENCE_LEGEND = """\
The head and the baseline it is compared with (nearest, or same head) are chosen on
one half of the documents and measured on the other; nearest, same head and chance
are of all documents. p: sign-flip test over documents, corrected (Holm). Every
head, with intervals: --json"""


def interval(of: "Accuracy") -> str:
    """The ends of an interval."""
    return f"{of.interval.low:.3f} to {of.interval.high:.3f}"
