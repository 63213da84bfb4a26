"""``unmask head`` and ``unmask sinks``: what heads do over a corpus."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.files import user_cache
from unmask.cli.options import OUTPUT, RUN, JsonOption, ModelOption, OutputOptions, RunOptions, how_many
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.interpret.corpus.measure import CorpusStatistics, Example
    from unmask.interpret.corpus.search import FoundExamples
    from unmask.interpret.corpus.sinks import CorpusSinks, Estimate, Removal
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
    corpus: Annotated[
        Path | None,
        Parameter(
            help="a .txt file with one text per line, or .jsonl with a text under the key text "
            "(default: 3,024 sentences of books, which come with the package)"
        ),
    ] = None,
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
    from unmask.interpret.corpus.patterns import PATTERNS
    from unmask.interpret.corpus.search import find_examples
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
        found = loaded.attention_over(
            texts, cache=cache or user_cache("corpus"), watch=lambda _, done, of: report(done, of)
        )
        shown: FoundExamples | tuple[Example, ...]
        if query is None and key is None:
            shown = found.examples(layer, number, pattern, top)
        else:
            shown = find_examples(
                loaded.encoder, found, layer, number, pattern=pattern, query=query, key=key, top=top
            )
    made = _head_report(loaded, found, (layer, number), (pattern, query, key), shown)
    if json:
        print_json(made)
    else:
        _show_head(made)


def _head_report(
    loaded: "Model",
    found: "CorpusStatistics",
    at: tuple[int, int],
    asked: tuple[str, str | None, str | None],
    shown: "FoundExamples | tuple[Example, ...]",
) -> HeadReport:
    """Statistics of the head ``at`` and its examples; ``asked`` is their pattern, query and key."""
    from unmask.interpret.attention.layer_statistics import CLASSES
    from unmask.interpret.attention.taxonomy import LABELS

    (layer, head), (pattern, query, key) = at, asked
    return HeadReport(
        model=loaded.name,
        revision=loaded.revision,
        layer=layer,
        head=head,
        corpus=found.corpus.name,
        corpus_sha256=found.corpus.sha256,
        texts=found.totals.texts,
        tokens=found.totals.queries,
        truncated=found.truncated,
        entropy_nats=float(found.entropy[at]),
        entropy_share=float(found.entropy_share[at]),
        distance_tokens=float(found.distance[at]),
        classes=dict(zip(CLASSES, found.classes[at].tolist(), strict=True)),
        labels=dict(zip(LABELS, found.labels[at].tolist(), strict=True)),
        pattern=pattern,
        query=query,
        key=key,
        matching=None if isinstance(shown, tuple) else shown.matching,
        read=None if isinstance(shown, tuple) else shown.read,
        examples=shown if isinstance(shown, tuple) else shown.examples,
    )


def _place(head: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", head)
    if found is None:
        raise InvalidRequest(f"the head is {head!r}; give LAYER.HEAD, both from 0, such as 4.9")
    return int(found[1]), int(found[2])


def _show_head(made: HeadReport) -> None:
    screen = console()
    screen.print(f"[bold]{safe(made.model)}, head {made.layer}.{made.head}[/bold] over {safe(made.corpus)}:")
    cut = f", {made.truncated:,} truncated" if made.truncated else ""
    screen.print(f"{made.texts:,} texts{cut}, {made.tokens:,} tokens")
    kinds = sorted(((share, name) for name, share in made.labels.items() if share), reverse=True)
    screen.print("pattern     " + ", ".join(f"{name} in {share:.0%} of the texts" for share, name in kinds))
    mass = sorted(((share, name) for name, share in made.classes.items()), reverse=True)
    screen.print("attends to  " + ", ".join(f"{name} {share:.2f}" for share, name in mass if share >= 0.005))
    screen.print(f"entropy     {made.entropy_nats:.2f} nats, {made.entropy_share:.0%} of the maximum")
    screen.print(f"distance    {made.distance_tokens:.1f} tokens\n")
    if made.matching is not None:
        screen.print(f"{made.matching:,} texts have these words; {made.read:,} were read")
    if not made.examples:
        screen.print("no text has such a query and key")
        return
    shown = table(None, "score", "weight", "query → key", "text", "from", right=("score", "weight"))
    for one in made.examples:
        key = one.text[slice(*one.key)] or one.key_piece
        pair = f"{safe(one.text[slice(*one.query)])} → {safe(key)}"
        shown.add_row(f"{one.score:.3f}", f"{one.weight:.3f}", pair, safe(one.text), safe(one.source))
    screen.print(shown)
    note = (
        "score: the largest weight in the text"
        if made.pattern == "edge"
        else (
            "score: attention to the keys of the pattern, mean over the queries that have one; "
            "query → key: the strongest such edge, with its weight"
        )
    )
    screen.print(f"\n[dim]{note}[/dim]")


def sinks(
    *,
    corpus: Annotated[
        Path | None,
        Parameter(
            help="a .txt file with one text per line, or .jsonl with a text under the key text "
            "(default: 3,024 sentences of books, which come with the package)"
        ),
    ] = None,
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
    given = (loaded.encoder, loaded.tokenizer, texts)
    with progress("texts", len(texts)) as report:
        found = corpus_sinks(
            *given, max_tokens=loaded.max_tokens, limit=limit, epsilon=epsilon,
            watch=lambda _, done, of: report(done, of),
        )  # fmt: skip
    removals: tuple[Removal, ...] = ()
    if remove is not None:
        with progress("texts without sinks", remove) as report:
            removals = remove_values(
                *given, max_tokens=loaded.max_tokens, limit=remove, watch=lambda _, done, of: report(done, of)
            )
    made = SinksReport(
        model=loaded.name,
        revision=loaded.revision,
        corpus=texts.name,
        corpus_sha256=texts.sha256,
        texts=len(found.received_SLHX),
        truncated=found.truncated,
        epsilon=epsilon,
        kinds=_kinds(found),
        removals=removals,
    )
    output.write(made)
    if not output.printed(made):
        _show_sinks(made)


def _kinds(found: "CorpusSinks") -> tuple[KindOfToken, ...]:
    from unmask.interpret.corpus.sinks import KINDS

    layers = range(len(found.heads_L))
    return tuple(
        KindOfToken(
            kind=kind,
            uniform=found.baseline(kind),
            share=found.share(kind),
            sinks=found.rate(kind),
            by_layer=tuple(found.share(kind, layer) for layer in layers),
            by_head=tuple(
                tuple(found.share(kind, layer, head) for head in range(found.heads_L[layer]))
                for layer in layers
            ),
        )
        for kind in KINDS
    )


def _show_sinks(made: SinksReport) -> None:
    screen = console()
    cut = f", {made.truncated:,} truncated" if made.truncated else ""
    screen.print(f"[bold]{safe(made.model)}[/bold] over {safe(made.corpus)}: {made.texts:,} texts{cut}\n")
    right = ("share", "95 % interval", "uniform", "sinks")
    layers = tuple(f"layer {layer}" for layer in range(len(made.kinds[0].by_layer)))
    shown = table(None, "tokens", *right, *layers, right=(*right, *layers))
    for one in made.kinds:
        shown.add_row(
            one.kind,
            f"{one.share.value:.3f}",
            _interval(one.share),
            f"{one.uniform.value:.3f}",
            f"{one.sinks.value:.3f}",
            *(f"{layer.value:.3f}" for layer in one.by_layer),
        )
    screen.print(shown)
    screen.print(f"\n[dim]{LEGEND.format(epsilon=made.epsilon)}[/dim]")
    if not made.removals:
        return
    columns = ("texts", "tokens", "divergence", "control", "difference")
    removed = table(None, "without the values of", *columns, right=columns)
    for without in made.removals:
        estimates = (
            f"{each.value:.3f} ({_interval(each)})"
            for each in (without.divergence, without.control, without.difference)
        )
        removed.add_row(without.kind, f"{without.texts:,}", f"{without.tokens:.1f}", *estimates)
    screen.print()
    screen.print(removed)
    screen.print(f"\n[dim]{REMOVAL_LEGEND}[/dim]")


def _interval(of: "Estimate") -> str:
    return f"{of.interval.low:.3f} to {of.interval.high:.3f}"
