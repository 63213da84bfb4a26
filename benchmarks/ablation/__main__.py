"""``python -m benchmarks.ablation``: train and measure small encoders, one change at a time."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from unmask.cli.main import main
from unmask.cli.options import JsonOption, listed
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from benchmarks.ablation.plan import Data, Plan
    from benchmarks.ablation.report import Report

COMMAND = "python -m benchmarks.ablation"
app = App(
    name=COMMAND,
    help="Train variants from BERT to ModernBERT, one change at a time, and measure each effect.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)

FolderOption = Annotated[
    Path,
    Parameter(name=["--output", "-o"], help="folder of the experiment; an existing one is resumed"),
]
VariantsOption = Annotated[list[str] | None, listed("variant names; default: all (see --list)", "--variants")]
OUT = Path("runs/ablate")


@app.default
def run(
    *,
    variants: VariantsOption = None,
    seeds: Annotated[int, Parameter(help="runs of each variant")] = 3,
    output: FolderOption = OUT,
    data: Annotated[
        Path | None, Parameter(help="a folder with text, and optionally with blimp and ud_ewt")
    ] = None,
    text: Annotated[
        str, Parameter(help="training files, relative to --data")
    ] = "gutenberg_books/books-0*.jsonl.xz",
    held_out: Annotated[
        str, Parameter(help="evaluation file, relative to --data")
    ] = "gutenberg_books/books-valid.jsonl.xz",
    tokens: Annotated[int | None, Parameter(help="training tokens per run")] = None,
    batch_tokens: Annotated[int | None, Parameter(help="tokens per step")] = None,
    width: Annotated[int | None, Parameter(help="hidden size of the encoders")] = None,
    layers: Annotated[int | None, Parameter(help="layers of the encoders")] = None,
    heads: Annotated[int | None, Parameter(help="attention heads per layer")] = None,
    vocabulary: Annotated[int | None, Parameter(help="vocabulary size of the tokenizer")] = None,
    pairs: Annotated[int | None, Parameter(help="sentence pairs per BLiMP paradigm")] = None,
    listed: Annotated[
        bool, Parameter(name="--list", negative="", help="list the variants without training")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train every variant with every seed and measure it; a stopped experiment is resumed.

    An experiment keeps its initial settings; they need not be given again.
    """
    if listed:
        _list(json)
        return
    from benchmarks.ablation.report import make_report
    from benchmarks.ablation.run import run_ablation as start

    sizes = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary}
    training = {"tokens": tokens, "batch_tokens": batch_tokens}
    found = None if data is None else _data(data, text, held_out)
    plan = _plan(output, found, sizes, training, {"pairs": pairs})
    start(plan, output, variants, seeds, _say)
    _show(make_report(output), json)


@app.command
def cost(
    *,
    output: FolderOption = OUT,
    variants: VariantsOption = None,
    rounds: Annotated[int, Parameter(help="steps per variant")] = 30,
    json: JsonOption = False,
) -> None:
    """Measure time and memory of training steps, alternating between variants; the report shows them."""
    from benchmarks.ablation.cost import measure_cost, write_costs
    from benchmarks.ablation.page import mebibytes
    from benchmarks.ablation.plan import read_plan
    from benchmarks.ablation.variants import VARIANTS, by_name

    names = [one.name for one in VARIANTS] if variants is None else variants
    for name in names:
        by_name(name)
    with progress("Timing", 0) as report:
        made = measure_cost(read_plan(output), output, names, rounds=rounds, progress=report)
    write_costs(made, output)
    if json:
        print_json(made)
        return
    right = ("tokens/s", "quartiles", "memory, MiB")
    shown = table(None, "variant", *right, right=right)
    for one in made.variants:
        quartiles = f"{one.lowest:,.0f} to {one.highest:,.0f}"
        shown.add_row(one.variant, f"{one.tokens_per_second:,.0f}", quartiles, mebibytes(one))
    console().print(shown)


@app.command
def report(
    *,
    output: FolderOption = OUT,
    page: Annotated[Path | None, Parameter(help="write the report as Markdown to this file")] = None,
    picture: Annotated[Path | None, Parameter(help="write a chart to this file, .png or .svg")] = None,
    json: JsonOption = False,
) -> None:
    """Summarize the finished runs as a table, a Markdown page or a chart.

    A file notes.md in the experiment's folder is included in the page.
    """
    from benchmarks.ablation.report import make_report

    made = make_report(output)
    if picture is not None:
        from benchmarks.ablation.picture import draw

        draw(made, picture)
    if page is not None:
        from benchmarks.ablation.page import page as written
        from unmask.base.files import whole_file

        shown = None if picture is None else os.path.relpath(picture, page.parent)
        noted = output / "notes.md"
        notes = noted.read_text(encoding="utf-8") if noted.is_file() else ""
        with whole_file(page) as partial:
            partial.write_text(written(made, shown, notes), encoding="utf-8")
    _show(made, json)


def _plan(
    output: Path,
    data: "Data | None",
    sizes: dict[str, int | None],
    training: dict[str, int | None],
    effort: dict[str, int | None],
) -> "Plan":
    """The plan with the given options; the rest comes from the existing experiment, or from the defaults."""
    from dataclasses import replace

    from benchmarks.ablation.plan import PLAN, Plan, read_plan

    if (output / PLAN).is_file():
        before = read_plan(output)
    elif data is None:
        raise InvalidRequest(
            "--data is missing; name the folder with the text and, optionally, blimp and ud_ewt"
        )
    else:
        before = Plan(data)
    if data is not None:
        before = replace(before, data=data)
    # The feed-forward network of the first variant is four times as wide as the encoder, as in BERT.
    if sizes["width"] is not None:
        sizes = {**sizes, "feedforward": 4 * sizes["width"]}
    return replace(
        before,
        sizes=replace(before.sizes, **_given(sizes)),
        training=replace(before.training, **_given(training)),
        effort=replace(before.effort, **_given(effort)),
    )


def _given(options: dict[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in options.items() if value is not None}


def _data(folder: Path, text: str, held_out: str) -> "Data":
    from benchmarks.ablation.plan import Data

    def beside(name: str) -> str | None:
        return str((folder / name).absolute()) if (folder / name).is_dir() else None

    return Data(
        text=(str(folder.absolute() / text),),
        held_out=str((folder / held_out).absolute()),
        blimp=beside("blimp"),
        treebank=beside("ud_ewt"),
    )


def _list(json: bool) -> None:
    from benchmarks.ablation.variants import VARIANTS

    if json:
        keys = ("name", "parent", "change", "source")
        print_json([{key: getattr(one, key) for key in keys} for one in VARIANTS])
        return
    shown = table(None, "variant", "from", "change", "source")
    for one in VARIANTS:
        shown.add_row(one.name, one.parent or "", safe(one.change), one.source)
    console().print(shown)


def _show(report: "Report", json: bool) -> None:
    from benchmarks.ablation.page import mebibytes
    from benchmarks.ablation.report import MEASURES, describe, findings, shown

    if json:
        print_json(report)
        return
    titles = [one.title for one in MEASURES]
    right = ("n", *titles, "tokens/s", "memory, MiB")
    made = table(None, "variant", "from", *right, right=right)
    noted = False
    for row in report.rows:
        cells = []
        for measure in MEASURES:
            outcome = row.outcome(measure.name)
            cell = "" if outcome is None else shown(measure, outcome.mean)
            other = outcome is not None and outcome.note is not None
            noted |= other
            cells.append(f"({cell})" if other else cell)
        rate, memory = "", ""
        if row.cost is not None:
            rate, memory = f"{row.cost.tokens_per_second:,.0f}", mebibytes(row.cost)
        made.add_row(row.variant, row.parent or "", str(len(row.seeds)), *cells, rate, memory)
    screen = console()
    screen.print(made)
    screen.print(safe(describe(report)))
    if noted:
        screen.print("In parentheses: sentences were compared with a different score.")
    for line in findings(report):
        screen.print(safe(line))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(lambda _: app, COMMAND)
