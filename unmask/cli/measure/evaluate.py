"""``unmask evaluate``: minimal pairs, masked words, parts of speech, heads, tasks, and retrieval."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from unmask.cli.measure.evaluate_retrieval import retrieval
from unmask.cli.measure.evaluate_tasks import COMMANDS
from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, print_legend, progress, safe, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from unmask.evaluate.probes.blimp import BlimpResult, Share
    from unmask.evaluate.probes.coreference import CoreferenceResult
    from unmask.evaluate.probes.dependencies import DependencyResult
    from unmask.evaluate.probes.distances import DistanceFit, DistanceResult
    from unmask.evaluate.probes.head_accuracy import Accuracy
    from unmask.evaluate.probes.perplexity import PerplexityResult
    from unmask.evaluate.probes.probing import ProbingResult, TaggingResult

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
    grid = table(
        None, "relation", "links", "best head", "accuracy", "95 % interval", "offset", "baseline",
        "difference", "p", "", right=right,
    )  # fmt: skip
    few = []
    for relation in result.relations:
        compared = relation.comparison
        if compared is None or relation.head is None:
            few.append(f"{relation.relation} {relation.links}")
            continue
        layer, head, direction = relation.head
        grid.add_row(
            safe(relation.relation),
            f"{relation.links:,}",
            f"{layer}.{head} {direction}",
            f"{compared.head.measured.value:.3f}",
            f"{compared.head.measured.interval:.3f}",
            f"{relation.offset:+d}",
            f"{compared.baseline.measured.value:.3f}",
            f"{compared.difference.value:+.3f} ({compared.difference.interval:.3f})",
            f"{compared.p_holm:.4f}",
            "better" if compared.better else "",
        )
    screen.print(grid)
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
    print_legend(TREES_LEGEND)


TREES_LEGEND = """\
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
    grid = table(None, "mentions of", "best head", *right, "", right=right)
    for kind in result.kinds:
        compared = kind.comparison
        baselines = (*(f"{value:.3f}" for value in kind.baselines.values()), f"{kind.chance:.3f}")
        if compared is None or kind.head is None:
            grid.add_row(kind.kind, "too few", f"{kind.mentions:,}", "", "", *baselines, "", "", "")
            continue
        grid.add_row(
            kind.kind,
            f"{kind.head[0]}.{kind.head[1]}",
            f"{kind.mentions:,}",
            f"{compared.head.measured.value:.3f}",
            f"{compared.head.measured.interval:.3f}",
            *baselines,
            f"{compared.difference.value:+.3f} ({compared.difference.interval:.3f})",
            f"{compared.p_holm:.4f}",
            "better" if compared.better else "",
        )
    screen.print(grid)
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


evaluate = App(
    name="evaluate",
    help="Evaluate an encoder: minimal pairs, masked words, parts of speech; heads; tasks; retrieval.",
    sort_key=1001,
)
for _command in (*COMMANDS, retrieval, dependencies, coreference):
    evaluate.command(_command)

PROBES_LEGEND = """\
gap          MLP minus linear: what only the non-linear probe finds
selectivity  accuracy minus that on a control task, which gives every word form a random
             label (Hewitt & Liang 2019)
random       the same probes on an encoder with random weights
Test accuracies, with 95 % bootstrap intervals over sentences in brackets."""

DISTANCES_LEGEND = """\
offset    how far the second token is after the first, from the difference of their states
distance  the same without its sign, from the squares of the differences
shuffled  the tokens in a random order, asked for their distance in the text
random    an encoder of the same architecture with random weights
R² of ridge regression on test pairs (95 % bootstrap interval over windows), ± mean absolute error."""

DataOption = Annotated[Path, Parameter(name="--data", help="the data folder, or one of its files")]
ScoreOption = Annotated[
    Literal["original", "within_word"],
    Parameter(name="--score", help="mask one token at a time, or also the later tokens of its word"),
]


@evaluate.command
def blimp(
    *,
    model: ModelOption,
    data: DataOption,
    run: RunOptions = RUN,
    score: ScoreOption = "original",
    limit: Annotated[int | None, Parameter(help="only the first N pairs of every paradigm")] = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Minimal pairs: how often the grammatical sentence is more likely (pseudo-log-likelihood)."""
    output.check()
    from unmask.evaluate.probes.blimp import measure_blimp, read_blimp

    pairs = read_blimp(data, limit)
    loaded = run.load(model)
    with progress("Scoring tokens", 0) as report:
        result = measure_blimp(loaded, pairs, score=score, progress=report)
    output.finish(result, _show_blimp)


@evaluate.command
def perplexity(
    *,
    model: ModelOption,
    data: DataOption,
    run: RunOptions = RUN,
    measure: Annotated[
        Literal["masked", "pseudo"], Parameter(help="mask 15 percent at once, or each token in turn")
    ] = "masked",
    score: ScoreOption = "original",
    tokens: Annotated[
        int | None, Parameter(help="tokens per window, including special tokens; default: 128")
    ] = None,
    limit: Annotated[int | None, Parameter(help="only the first N windows")] = None,
    seed: Annotated[int, Parameter(help="random seed of the masks")] = 0,
    output: OutputOptions = OUTPUT,
) -> None:
    """Masked words in running text: loss, perplexity, accuracy, nats per character and byte."""
    output.check()
    from unmask.evaluate.probes.perplexity import measure_perplexity, read_texts, text_file, text_windows
    from unmask.evaluate.probes.scoring import check_masked

    path = text_file(data)
    loaded = run.load(model)
    check_masked(loaded)
    cut = text_windows(loaded, read_texts(path), tokens=tokens, limit=limit)
    with progress("Scoring tokens", 0) as report:
        result = measure_perplexity(
            loaded, cut, source=path.name, measure=measure, score=score, seed=seed, progress=report
        )
    output.finish(result, _show_perplexity)


@evaluate.command
def tagging(
    *,
    model: ModelOption,
    data: DataOption,
    run: RunOptions = RUN,
    layer: Annotated[int | None, Parameter(help="a single layer, 0 for the embedding; default: all")] = None,
    limit: Annotated[int | None, Parameter(help="only the first N sentences of each split")] = None,
    output: OutputOptions = OUTPUT,
) -> None:
    """Part-of-speech tagging with a linear probe on frozen hidden states, layer by layer."""
    output.check()
    from unmask.evaluate.probes.probing import measure_tagging
    from unmask.evaluate.probes.words import read_treebank

    treebank = read_treebank(data, limit)
    loaded = run.load(model)
    with progress("Reading sentences", 0) as report:
        result = measure_tagging(loaded, treebank, layer=layer, progress=report)
    output.finish(result, _show_tagging)


@evaluate.command
def probes(
    *,
    model: ModelOption = "default",
    data: Annotated[
        Path,
        Parameter(
            name="--data",
            help="labeled words: a .conllu, .conll or .jsonl file, or a folder with train, dev and test",
        ),
    ],
    labels: Annotated[
        Literal["upos", "xpos", "deprel", "lemma"],
        Parameter(name="--labels", help="which column of .conllu files is the label"),
    ] = "upos",
    layer: Annotated[int | None, Parameter(help="a single layer, 0 for the embedding; default: all")] = None,
    hidden: Annotated[int, Parameter(help="units of the hidden layer of the MLP")] = 128,
    control: Annotated[bool, Parameter(help="fit control tasks too")] = True,
    random: Annotated[bool, Parameter(help="fit probes on an encoder of random weights too")] = True,
    seed: Annotated[int, Parameter(help="random seed of probes, controls and weights")] = 0,
    limit: Annotated[int | None, Parameter(help="only the first N sentences of each part")] = None,
    run: RunOptions = RUN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Linear and non-linear probes of every layer, with control tasks and a random baseline."""
    output.check()
    from unmask.evaluate.probes.probing import measure_probes
    from unmask.evaluate.probes.words import read_labeled

    parts = read_labeled(data, labels, limit)
    loaded = run.load(model)
    with progress("probes", 0) as report:
        result = measure_probes(
            loaded,
            parts,
            layer=layer,
            hidden=hidden,
            control=control,
            random=random,
            seed=seed,
            progress=report,
        )
    output.finish(result, _show_probes)


@evaluate.command
def distances(
    *,
    model: ModelOption = "default",
    data: Annotated[Path, Parameter(name="--data", help="running text: a .txt or .jsonl file, or a folder")],
    distance: Annotated[int, Parameter(help="the largest distance asked for, in tokens")] = 32,
    tokens: Annotated[int | None, Parameter(help="tokens per window; default: 128")] = None,
    layer: Annotated[int | None, Parameter(help="a single layer, 0 for the embedding; default: all")] = None,
    shuffled: Annotated[bool, Parameter(help="also probe the tokens in a random order")] = True,
    random: Annotated[bool, Parameter(help="also probe an encoder of random weights")] = True,
    limit: Annotated[int, Parameter(help="only the first N windows")] = 300,
    seed: Annotated[int, Parameter(help="random seed of pairs, orders and weights")] = 0,
    run: RunOptions = RUN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Relative positions: how well the distance between two tokens can be read from their states."""
    output.check()
    from unmask.evaluate.probes.distances import measure_distances
    from unmask.evaluate.probes.perplexity import read_texts, text_file, text_windows

    path, loaded = text_file(data), run.load(model)
    windows = text_windows(loaded, read_texts(path), tokens=tokens, limit=limit)
    with progress("probes", 0) as report:
        result = measure_distances(
            loaded, windows, source=path.name, largest=distance, layer=layer, shuffled=shuffled,
            random=random, seed=seed, progress=report,
        )  # fmt: skip
    output.finish(result, _show_distances)


def _show_blimp(result: "BlimpResult") -> None:
    screen = console()
    for title, shares in (
        ("paradigm", result.paradigms),
        ("phenomenon", result.terms),
        ("field", result.fields),
    ):
        screen.print(_shares(title, shares))
        screen.print()
    screen.print(_shares("all", [result.overall]))
    part = "" if result.complete else "; not all of BLiMP"
    screen.print(
        safe(
            f"{result.model}, {result.dtype}, score {result.score}: accuracy {result.accuracy:.4f}, "
            f"{result.sentences_per_second:,.0f} sentences/s{part}"
        )
    )


def _shares(title: str, shares: "Sequence[Share]") -> "Table":
    right = ("pairs", "accuracy", "95 % interval", "ties (wrong)")
    grid = table(None, title, *right, right=right)
    for share in shares:
        grid.add_row(
            safe(share.name),
            f"{share.pairs:,}",
            f"{share.accuracy:.4f}",
            f"{share.low:.4f} to {share.high:.4f}",
            f"{share.ties:,}",
        )
    return grid


def _show_perplexity(result: "PerplexityResult") -> None:
    how = f"seed {result.seed}" if result.score is None else f"score {result.score}"
    screen = console()
    screen.print(safe(f"{result.model}, {result.dtype}, on {result.source}: {result.measure}, {how}"))
    right = ("value", "95 % interval")
    grid = table(None, "metric", *right, right=right)
    metrics = {
        "loss, nats per token": ("loss", 4),
        "perplexity": ("perplexity", 3),
        "accuracy": ("accuracy", 4),
    }
    for name, value in (
        ("windows", f"{result.windows:,}"),
        ("tokens", f"{result.tokens:,}"),
        ("tokens scored", f"{result.scored:,}"),
        ("loss, nats per token", f"{result.loss:.4f}"),
        ("perplexity", f"{result.perplexity:,.3f}"),
        ("accuracy", f"{result.accuracy:.4f}"),
        ("nats per character", f"{result.nats_per_character:.4f}"),
        ("nats per byte", f"{result.nats_per_byte:.4f}"),
        ("unigram loss (add-one, counts of this text)", f"{result.unigram_loss:.4f}"),
        ("unigram accuracy (most frequent token)", f"{result.unigram_accuracy:.4f}"),
    ):
        key, places = metrics.get(name, ("", 0))
        between = result.intervals.get(key)
        ends = "" if between is None else f"{between.low:,.{places}f} to {between.high:,.{places}f}"
        grid.add_row(name, value, ends)
    screen.print(grid)


def _show_tagging(result: "TaggingResult") -> None:
    screen = console()
    right = ("dev", "test", "95 % interval", "penalty")
    grid = table(None, "layer", *right, right=right)
    for layer in result.layers:
        best = " (best on dev)" if layer.layer == result.best_layer else ""
        grid.add_row(
            f"{layer.layer}{best}",
            f"{layer.dev_accuracy:.4f}",
            f"{layer.test_accuracy:.4f}",
            f"{layer.test_interval:.4f}",
            f"{layer.strength:g}",
        )
    screen.print(grid)
    counts = ", ".join(f"{part} {count:,}" for part, count in result.words.items())
    screen.print(
        safe(
            f"{result.model}, {result.dtype}: accuracy {result.accuracy:.4f} at layer {result.best_layer}; "
            f"baseline, most frequent tag of each word form: {result.baseline_accuracy:.4f} (words: {counts})"
        )
    )
    _show_split(result)


def _show_probes(result: "ProbingResult") -> None:
    screen = console()
    screen.print(
        safe(
            f"{result.model}, {result.dtype}; {len(result.labels)} labels, "
            + ", ".join(f"{part} {count:,} words" for part, count in result.words.items())
        )
    )
    columns = {
        "linear": "linear", "MLP": "mlp", "gap": "gap", "selectivity, linear": "linear_selectivity",
        "selectivity, MLP": "mlp_selectivity", "random, linear": "random_linear", "random, MLP": "random_mlp",
    }  # fmt: skip
    shown_columns = {
        title: name for title, name in columns.items() if getattr(result.layers[0], name) is not None
    }
    grid = table(None, "layer", *shown_columns, right=tuple(shown_columns))
    for layer in result.layers:
        grid.add_row(str(layer.layer), *(_cell(getattr(layer, name)) for name in shown_columns.values()))
    screen.print(grid)
    screen.print(
        f"baselines: the most frequent label {result.majority:.4f}, "
        f"that of each word form {result.by_form:.4f}"
    )
    _show_split(result)
    print_legend(PROBES_LEGEND)


def _cell(of: "Accuracy") -> str:
    return f"{of.value:.3f} ({of.interval:.3f})"


def _show_split(result: "TaggingResult | ProbingResult") -> None:
    if result.split_sentences or result.words_without_token:
        console().print(
            f"{result.split_sentences:,} sentences exceeded the maximum length and were split; "
            f"{result.words_without_token:,} words have no token"
        )


def _show_distances(result: "DistanceResult") -> None:
    screen = console()
    positions = " and ".join(result.positions) or "no positions"
    screen.print(safe(f"{result.model}, {result.dtype}, on {result.source}; {positions}"))
    every = [f"{control}{of}" for of in ("offset", "distance") for control in ("", "shuffled_", "random_")]
    names = [name for name in every if getattr(result.layers[0], name) is not None]
    grid = table(None, "layer", *(name.replace("_", " ") for name in names))
    for layer in result.layers:
        grid.add_row(str(layer.layer), *(_fit(getattr(layer, name)) for name in names))
    screen.print(grid)
    counts = ", ".join(f"{part} {count:,}" for part, count in result.pairs.items())
    screen.print(
        f"pairs of tokens, 1 to {result.largest} apart: {counts}; the mean is wrong by "
        f"{result.offset_error:.2f} (offset) and {result.distance_error:.2f} tokens (distance)"
    )
    print_legend(DISTANCES_LEGEND)


def _fit(of: "DistanceFit") -> str:
    return f"{of.r2:.3f} ({of.r2_interval:.3f}), ±{of.error:.2f}"
