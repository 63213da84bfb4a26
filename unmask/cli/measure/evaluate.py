"""``unmask evaluate``: minimal pairs, masked words, parts of speech, heads, tasks, and retrieval."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from unmask.cli.measure.evaluate_heads import coreference, dependencies
from unmask.cli.measure.evaluate_probes import probes
from unmask.cli.measure.evaluate_retrieval import retrieval
from unmask.cli.measure.evaluate_tasks import COMMANDS
from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, progress, safe, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from unmask.evaluate.probes.blimp import BlimpResult, Share
    from unmask.evaluate.probes.perplexity import PerplexityResult
    from unmask.evaluate.probes.tagging import TaggingResult

evaluate = App(
    name="evaluate",
    help="Evaluate an encoder: minimal pairs, masked words, parts of speech; heads; tasks; retrieval.",
    sort_key=1001,
)
for _command in (*COMMANDS, retrieval, dependencies, coreference, probes):
    evaluate.command(_command)

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
    output.write(result)
    if not output.printed(result):
        _show_blimp(result)


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
    from unmask.evaluate.probes.perplexity import measure_perplexity
    from unmask.evaluate.probes.scoring import check_masked
    from unmask.evaluate.probes.windows import documents, text_file, windows

    path = text_file(data)
    loaded = run.load(model)
    check_masked(loaded)
    cut = windows(loaded, documents(path), tokens=tokens, limit=limit)
    with progress("Scoring tokens", 0) as report:
        result = measure_perplexity(
            loaded, cut, source=path.name, measure=measure, score=score, seed=seed, progress=report
        )
    output.write(result)
    if not output.printed(result):
        _show_perplexity(result)


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
    from unmask.evaluate.probes.conllu import read_treebank
    from unmask.evaluate.probes.tagging import measure_tagging

    treebank = read_treebank(data, limit)
    loaded = run.load(model)
    with progress("Reading sentences", 0) as report:
        result = measure_tagging(loaded, treebank, layer=layer, progress=report)
    output.write(result)
    if not output.printed(result):
        _show_tagging(result)


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
    made = table(None, title, *right, right=right)
    for one in shares:
        made.add_row(
            safe(one.name),
            f"{one.pairs:,}",
            f"{one.accuracy:.4f}",
            f"{one.low:.4f} to {one.high:.4f}",
            f"{one.ties:,}",
        )
    return made


def _show_perplexity(result: "PerplexityResult") -> None:
    how = f"seed {result.seed}" if result.score is None else f"score {result.score}"
    screen = console()
    screen.print(safe(f"{result.model}, {result.dtype}, on {result.source}: {result.measure}, {how}"))
    right = ("value", "95 % interval")
    made = table(None, "metric", *right, right=right)
    shown = {
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
        key, places = shown.get(name, ("", 0))
        between = result.intervals.get(key)
        ends = "" if between is None else f"{between.low:,.{places}f} to {between.high:,.{places}f}"
        made.add_row(name, value, ends)
    screen.print(made)


def _show_tagging(result: "TaggingResult") -> None:
    screen = console()
    right = ("dev", "test", "95 % interval", "penalty")
    made = table(None, "layer", *right, right=right)
    for one in result.layers:
        best = " (best on dev)" if one.layer == result.best_layer else ""
        made.add_row(
            f"{one.layer}{best}",
            f"{one.dev_accuracy:.4f}",
            f"{one.test_accuracy:.4f}",
            f"{one.test_interval.low:.4f} to {one.test_interval.high:.4f}",
            f"{one.strength:g}",
        )
    screen.print(made)
    counts = ", ".join(f"{part} {count:,}" for part, count in result.words.items())
    screen.print(
        safe(
            f"{result.model}, {result.dtype}: accuracy {result.accuracy:.4f} at layer {result.best_layer}; "
            f"baseline, most frequent tag of each word form: {result.baseline_accuracy:.4f} (words: {counts})"
        )
    )
    if result.split_sentences or result.words_without_token:
        screen.print(
            f"{result.split_sentences:,} sentences exceeded the maximum length and were split; "
            f"{result.words_without_token:,} words have no token"
        )
