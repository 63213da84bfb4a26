"""``unmask senses``: whether, and from which layer on, an encoder separates the senses of a word."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import console, print_json, progress, safe, table

if TYPE_CHECKING:
    from unmask.interpret.geometry import SenseLayer, SenseReport


def senses(
    word: Annotated[
        str, Parameter(help="the word, such as bank; the included words are listed above")
    ] = "bank",
    *,
    file: Annotated[
        Path | None,
        Parameter(help='lines of sense, tab, sentence; or JSON lines with "sense" and "sentence"'),
    ] = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    shuffle: Annotated[
        Literal["none", "within", "across"],
        Parameter(help="first shuffle all other words, within each sentence or across sentences"),
    ] = "none",
    random: Annotated[bool, Parameter(help="also measure a baseline with random weights")] = True,
    permutations: Annotated[int, Parameter(help="number of random permutations of the senses")] = 999,
    seed: Annotated[int, Parameter(help="random seed of shuffles, permutations and random weights")] = 0,
    json: JsonOption = False,
) -> None:
    """Compare the vectors of one word across sentences, layer by layer: are its senses separated?

    The model may also be a folder with an ELMo, whose layers are recurrent.

    Sentences for bank, bat, spring, crane and bark are included; other words need a --file.
    """
    from unmask.interpret.geometry import read_sense_file, shipped_senses
    from unmask.interpret.geometry import word_senses as measure

    sentences = shipped_senses(word) if file is None else read_sense_file(file, word)
    if shuffle != "none":
        sentences = sentences.dealt(shuffle, seed)
    loaded = run.load_states(model)
    with progress("Reading sentences", 0) as report:
        measured = measure(
            loaded.encoder,
            loaded.tokenizer,
            sentences,
            max_tokens=loaded.max_tokens,
            random=random,
            permutations=permutations,
            seed=seed,
            watch=lambda _, done, of: report(done, of),
        )
    if json:
        print_json({"model": loaded.name, "revision": loaded.revision, "report": measured})
    else:
        _show(loaded.name, measured)


def _show(model: str, measured: "SenseReport") -> None:
    counts = ", ".join(f"{n} of {safe(s)}" for s, n in zip(measured.senses, measured.counts, strict=True))
    changed = {
        "none": "",
        "within": "; words shuffled within sentences",
        "across": "; words shuffled across sentences",
    }
    screen = console()
    screen.print(f"[bold]{safe(measured.word)}[/bold] in {safe(model)}: {counts}{changed[measured.control]}")
    right = ("layer", "within", "across", "margin", "chance", "p", "accuracy", "chance ", "silhouette")
    columns = (*right, "random weights: margin", "accuracy ") if measured.random else right
    rows = table(None, *columns, right=columns)
    for number, layer in enumerate(measured.layers):
        twin = () if measured.random is None else _twin(measured.random[number])
        rows.add_row(*_row(layer), *twin)
    screen.print(rows)
    screen.print(
        "within, across: mean cosine of two occurrences of one sense, of two senses; "
        "margin: their difference; accuracy: how often the nearest sense is the true one; "
        f"chance: 95th percentile of {measured.permutations} random permutations of the senses"
    )


def _row(layer: "SenseLayer") -> tuple[str, ...]:
    margin, right = layer.margin, layer.accuracy
    null = layer.accuracy_null
    return (
        str(layer.layer),
        f"{layer.within:.3f}",
        f"{layer.across:.3f}",
        f"{margin.value:.3f} \\[{margin.low:.3f}, {margin.high:.3f}]",
        f"{layer.margin_null.high:.3f}",
        f"{layer.margin_null.p:.3f}",
        "-" if right.value is None else f"{right.value:.2f} \\[{right.low:.2f}, {right.high:.2f}]",
        "-" if null is None else f"{null.high:.2f}",
        "-" if layer.silhouette is None else f"{layer.silhouette:.2f}",
    )


def _twin(layer: "SenseLayer") -> tuple[str, str]:
    right = layer.accuracy.value
    return f"{layer.margin.value:.3f}", "-" if right is None else f"{right:.2f}"
