"""``unmask sinks``: attention sinks over a corpus, and what the model loses without their values."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, progress, safe, table

if TYPE_CHECKING:
    from unmask.interpret.corpus.sinks import CorpusSinks, Estimate, Removal

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
        _show(made)


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


def _show(made: SinksReport) -> None:
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
