"""``unmask evaluate probes``: linear and non-linear probes of every layer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, print_legend, progress, safe, table

if TYPE_CHECKING:
    from unmask.evaluate.probes.head_accuracy import Accuracy
    from unmask.evaluate.probes.probing import ProbingResult

LEGEND = """\
gap          MLP minus linear: what only the non-linear probe finds
selectivity  accuracy minus that on a control task, which gives every word form a random
             label (Hewitt & Liang 2019)
random       the same probes on an encoder with random weights
Test accuracies, with 95 % bootstrap intervals over sentences in brackets."""


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
    from unmask.evaluate.probes.labels import read_labeled
    from unmask.evaluate.probes.probing import measure_probes

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
    output.write(result)
    if not output.printed(result):
        _show(result)


def _show(result: "ProbingResult") -> None:
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
    shown = table(None, "layer", *shown_columns, right=tuple(shown_columns))
    for one in result.layers:
        shown.add_row(str(one.layer), *(_cell(getattr(one, name)) for name in shown_columns.values()))
    screen.print(shown)
    screen.print(
        f"baselines: the most frequent label {result.majority:.4f}, "
        f"that of each word form {result.by_form:.4f}"
    )
    if result.split_sentences or result.words_without_token:
        screen.print(
            f"{result.split_sentences:,} sentences exceeded the maximum length and were split; "
            f"{result.words_without_token:,} words have no token"
        )
    print_legend(LEGEND)


def _cell(of: "Accuracy") -> str:
    return f"{of.value:.3f} ({of.interval.low:.3f} to {of.interval.high:.3f})"
