"""``unmask head`` and ``sinks``: what heads do over a corpus. ``unmask senses``: a word across sentences."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.files import user_cache
from unmask.cli.options import OUTPUT, RUN, JsonOption, ModelOption, OutputOptions, RunOptions, how_many
from unmask.cli.output import console, present, print_json, print_legend, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.interpret.corpus.measure import CorpusStatistics, Example, FoundExamples
    from unmask.interpret.corpus.sinks import CorpusSinks, Estimate, Removal
    from unmask.interpret.geometry import SenseLayer, SenseReport
    from unmask.models.load import Model


LEGEND = """\
share    attention that all tokens of the kind receive together, mean over queries,
         heads and texts, with its 95 % bootstrap interval over texts
uniform  what uniform attention would give them: their share of the tokens
sinks    share of heads and texts whose strongest token is of the kind and
         receives more than {epsilon:g} of all attention"""


REMOVAL_LEGEND = """\
Nats by which the prediction of a masked word diverges when the values of all tokens of the
kind are taken away in every head and layer; control: as many other words of the text."""


CorpusOption = Annotated[
    Path | None,
    Parameter(
        help="a .txt file with one text per line, or .jsonl with a text under the key text "
        "(default: 3,024 sentences of books, which come with the package)"
    ),
]


@dataclass(frozen=True)
class HeadReport:
    """Everything ``unmask head`` shows. Means are over the queries of all texts."""

    model: str
    revision: str | None
    layer: int
    head: int
    corpus: str
    corpus_sha256: str
    texts: int
    tokens: int
    truncated: int
    """Texts of which only the beginning was read."""
    entropy_nats: float
    entropy_share: float
    distance_tokens: float
    classes: dict[str, float]
    """Mean attention to keys of each class."""
    labels: dict[str, float]
    """Share of texts in which the head has each label."""
    pattern: str
    query: str | None
    key: str | None
    matching: int | None
    """Texts with the words asked for; None if there are none asked for."""
    read: int | None
    examples: tuple["Example", ...]


@dataclass(frozen=True)
class KindOfToken:
    """One kind of token."""

    kind: str
    """One of `unmask.interpret.corpus.sinks.KINDS`."""
    uniform: "Estimate"
    share: "Estimate"
    sinks: "Estimate"
    by_layer: tuple["Estimate", ...]
    """Its share in each layer."""
    by_head: tuple[tuple["Estimate", ...], ...]
    """Its share in each head, layer by layer."""


@dataclass(frozen=True)
class SinksReport:
    """Everything ``unmask sinks`` shows."""

    model: str
    revision: str | None
    corpus: str
    corpus_sha256: str
    texts: int
    truncated: int
    epsilon: float
    kinds: tuple[KindOfToken, ...]
    removals: tuple["Removal", ...]
    """Empty unless they were asked for."""


def head(
    head: Annotated[str, Parameter(help="the head, LAYER.HEAD, both from 0")],
    *,
    corpus: CorpusOption = None,
    pattern: Annotated[
        str,
        Parameter(
            help="what the head is to do: edge (its strongest edges), previous, next, self, word, repeat, "
            "punctuation, first, special or distant"
        ),
    ] = "edge",
    query: Annotated[str | None, Parameter(help="only examples whose query is of this word")] = None,
    key: Annotated[str | None, Parameter(help="only examples whose key is of this word")] = None,
    top: Annotated[int, how_many("number of examples")] = 10,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    cache: Annotated[
        Path | None,
        Parameter(name="--cache", help="folder where results are kept (default: ~/.cache/unmask/corpus)"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what one head does over a corpus: its patterns, its means, and its strongest examples.

    The first run reads the whole corpus, half a minute for the default one; results are kept for all heads.
    """
    from unmask.interpret.corpus.batch import PATTERNS
    from unmask.interpret.corpus.measure import find_examples
    from unmask.interpret.corpus.statistics import EXAMPLES
    from unmask.interpret.corpus.texts import corpus_of

    layer, number = _place(head)
    if pattern not in PATTERNS:
        raise InvalidRequest(f"--pattern is {pattern!r}; it can be {', '.join(PATTERNS)}")
    if not 1 <= top <= EXAMPLES:
        raise InvalidRequest(f"--top is {top}; it can be 1 to {EXAMPLES}")
    texts = corpus_of(corpus)
    loaded = run.load(model)
    if not 0 <= layer < loaded.layer_count or not 0 <= number < loaded.spec.layers[layer].mixer.heads:
        raise InvalidRequest(
            f"there is no head {head}; {loaded.name} has layers 0 to {loaded.layer_count - 1} of "
            f"{loaded.head_count} heads"
        )
    with progress("texts", len(texts)) as report:
        statistics = loaded.attention_over(
            texts, cache=cache or user_cache("corpus"), watch=lambda _, done, of: report(done, of)
        )
        shown: FoundExamples | tuple[Example, ...]
        if query is None and key is None:
            shown = statistics.examples(layer, number, pattern, top)
        else:
            shown = find_examples(
                loaded.encoder, statistics, layer, number, pattern=pattern, query=query, key=key, top=top
            )
    result = _head_report(loaded, statistics, (layer, number), (pattern, query, key), shown)
    present(result, _show_head, json=json)


def _head_report(
    loaded: "Model",
    statistics: "CorpusStatistics",
    at: tuple[int, int],
    asked: tuple[str, str | None, str | None],
    shown: "FoundExamples | tuple[Example, ...]",
) -> HeadReport:
    """Statistics of the head ``at`` and its examples; ``asked`` is their pattern, query and key."""
    from unmask.interpret.attention.layer_statistics import CLASSES, LABELS

    (layer, head), (pattern, query, key) = at, asked
    return HeadReport(
        model=loaded.name,
        revision=loaded.revision,
        layer=layer,
        head=head,
        corpus=statistics.corpus.name,
        corpus_sha256=statistics.corpus.sha256,
        texts=statistics.totals.texts,
        tokens=statistics.totals.queries,
        truncated=statistics.truncated,
        entropy_nats=float(statistics.entropy[at]),
        entropy_share=float(statistics.entropy_share[at]),
        distance_tokens=float(statistics.distance[at]),
        classes=dict(zip(CLASSES, statistics.classes[at].tolist(), strict=True)),
        labels=dict(zip(LABELS, statistics.labels[at].tolist(), strict=True)),
        pattern=pattern,
        query=query,
        key=key,
        matching=None if isinstance(shown, tuple) else shown.matching,
        read=None if isinstance(shown, tuple) else shown.read,
        examples=shown if isinstance(shown, tuple) else shown.examples,
    )


def _place(head: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", head)
    if match is None:
        raise InvalidRequest(f"the head is {head!r}; give LAYER.HEAD, both from 0, such as 4.9")
    return int(match[1]), int(match[2])


def _show_head(result: HeadReport) -> None:
    screen = console()
    screen.print(
        f"[bold]{safe(result.model)}, head {result.layer}.{result.head}[/bold] over {safe(result.corpus)}:"
    )
    cut = f", {result.truncated:,} truncated" if result.truncated else ""
    screen.print(f"{result.texts:,} texts{cut}, {result.tokens:,} tokens")
    kinds = sorted(((share, name) for name, share in result.labels.items() if share), reverse=True)
    screen.print("pattern     " + ", ".join(f"{name} in {share:.0%} of the texts" for share, name in kinds))
    mass = sorted(((share, name) for name, share in result.classes.items()), reverse=True)
    screen.print("attends to  " + ", ".join(f"{name} {share:.2f}" for share, name in mass if share >= 0.005))
    screen.print(f"entropy     {result.entropy_nats:.2f} nats, {result.entropy_share:.0%} of the maximum")
    screen.print(f"distance    {result.distance_tokens:.1f} tokens\n")
    if result.matching is not None:
        screen.print(f"{result.matching:,} texts have these words; {result.read:,} were read")
    if not result.examples:
        screen.print("no text has such a query and key")
        return
    grid = table(None, "score", "weight", "query → key", "text", "from", right=("score", "weight"))
    for example in result.examples:
        key = example.text[slice(*example.key)] or example.key_piece
        pair = f"{safe(example.text[slice(*example.query)])} → {safe(key)}"
        grid.add_row(
            f"{example.score:.3f}", f"{example.weight:.3f}", pair, safe(example.text), safe(example.source)
        )
    screen.print(grid)
    note = (
        "score: the largest weight in the text"
        if result.pattern == "edge"
        else (
            "score: attention to the keys of the pattern, mean over the queries that have one; "
            "query → key: the strongest such edge, with its weight"
        )
    )
    print_legend(note)


def sinks(
    *,
    corpus: CorpusOption = None,
    limit: Annotated[int | None, Parameter(help="only N texts, drawn at random")] = None,
    epsilon: Annotated[float, Parameter(help="the share of attention from which a token is a sink")] = 0.3,
    remove: Annotated[
        int | None,
        Parameter(help="take the values of sinks away in N texts, and compare the predicted words"),
    ] = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Attention sinks over a corpus: which kinds of tokens receive attention, in which heads.

    With --remove (models with an MLM head, such as unmask-mini), also what the prediction of masked words
    loses when the values of the first token, of other special tokens or of punctuation are taken away.
    """
    output.check()
    from unmask.encoder.decoder import word_role
    from unmask.interpret.corpus.sinks import corpus_sinks, remove_values
    from unmask.interpret.corpus.texts import corpus_of

    texts = corpus_of(corpus)
    loaded = run.load(model)
    if remove is not None:
        word_role(loaded.encoder)  # refuses a model without an MLM head before the long part
    inputs = (loaded.encoder, loaded.tokenizer, texts)
    with progress("texts", len(texts)) as report:
        statistics = corpus_sinks(
            *inputs, max_tokens=loaded.max_tokens, limit=limit, epsilon=epsilon,
            watch=lambda _, done, of: report(done, of),
        )  # fmt: skip
    removals: tuple[Removal, ...] = ()
    if remove is not None:
        with progress("texts without sinks", remove) as report:
            removals = remove_values(
                *inputs,
                max_tokens=loaded.max_tokens,
                limit=remove,
                watch=lambda _, done, of: report(done, of),
            )
    result = SinksReport(
        model=loaded.name,
        revision=loaded.revision,
        corpus=texts.name,
        corpus_sha256=texts.sha256,
        texts=len(statistics.received_SLHX),
        truncated=statistics.truncated,
        epsilon=epsilon,
        kinds=_kinds(statistics),
        removals=removals,
    )
    output.write(result)
    if not output.printed(result):
        _show_sinks(result)


def _kinds(statistics: "CorpusSinks") -> tuple[KindOfToken, ...]:
    from unmask.interpret.corpus.sinks import KINDS

    layers = range(len(statistics.heads_L))
    return tuple(
        KindOfToken(
            kind=kind,
            uniform=statistics.baseline(kind),
            share=statistics.share(kind),
            sinks=statistics.rate(kind),
            by_layer=tuple(statistics.share(kind, layer) for layer in layers),
            by_head=tuple(
                tuple(statistics.share(kind, layer, head) for head in range(statistics.heads_L[layer]))
                for layer in layers
            ),
        )
        for kind in KINDS
    )


def _show_sinks(result: SinksReport) -> None:
    screen = console()
    cut = f", {result.truncated:,} truncated" if result.truncated else ""
    screen.print(
        f"[bold]{safe(result.model)}[/bold] over {safe(result.corpus)}: {result.texts:,} texts{cut}\n"
    )
    right = ("share", "95 % interval", "uniform", "sinks")
    layers = tuple(f"layer {layer}" for layer in range(len(result.kinds[0].by_layer)))
    grid = table(None, "tokens", *right, *layers, right=(*right, *layers))
    for kind in result.kinds:
        grid.add_row(
            kind.kind,
            f"{kind.share.value:.3f}",
            f"{kind.share.interval:.3f}",
            f"{kind.uniform.value:.3f}",
            f"{kind.sinks.value:.3f}",
            *(f"{layer.value:.3f}" for layer in kind.by_layer),
        )
    screen.print(grid)
    print_legend(LEGEND.format(epsilon=result.epsilon))
    if not result.removals:
        return
    columns = ("texts", "tokens", "divergence", "control", "difference")
    removed = table(None, "without the values of", *columns, right=columns)
    for without in result.removals:
        estimates = (
            f"{each.value:.3f} ({each.interval:.3f})"
            for each in (without.divergence, without.control, without.difference)
        )
        removed.add_row(without.kind, f"{without.texts:,}", f"{without.tokens:.1f}", *estimates)
    screen.print()
    screen.print(removed)
    print_legend(REMOVAL_LEGEND)


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
    static = measured.static
    for name, of_words in (("static, word", static.word), ("static, context", static.context)):
        if of_words is not None:
            rows.add_row(*_row(of_words, name))
    screen.print(rows)
    screen.print(
        "within, across: mean cosine of two occurrences of one sense, of two senses; "
        "margin: their difference; accuracy: how often the nearest sense is the true one; "
        f"chance: 95th percentile of {measured.permutations} random permutations of the senses; "
        "static: rows of the embedding, of the word alone, and the mean of the sentence's other words"
    )


def _row(layer: "SenseLayer", name: str | None = None) -> tuple[str, ...]:
    margin, right = layer.margin, layer.accuracy
    null = layer.accuracy_null
    return (
        str(layer.layer) if name is None else name,
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
