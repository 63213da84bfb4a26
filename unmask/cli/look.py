"""``unmask look``: tokens, heads and sinks of one text, in the terminal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, read_standard_input
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TruncationOption
from unmask.cli.output import console, print_json, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.loaded import Model
    from unmask.see import AttentionView

SHADES = " ░▒▓█"
"""Five steps from nothing to all."""


@dataclass(frozen=True)
class LookToken:
    """One token of the text."""

    surface: str
    piece: str
    id: int
    start: int
    end: int
    special: bool


@dataclass(frozen=True)
class LookHead:
    """What one head does with the text: `unmask.see.HeadSummary`, and what it is called for it."""

    layer: int
    head: int
    kind: str
    """Whose weights they are: ``softmax``, or the ``kernel`` that linear attention implies."""
    label: str
    """One of `unmask.see.taxonomy.LABELS`."""
    label_share: float
    """What decided the label, see `unmask.see.taxonomy.HeadLabel`."""
    entropy_nats: float
    entropy_share: float
    distance_tokens: float
    sink_token: int
    sink_mass: float
    relation: str
    relation_mass: float


@dataclass(frozen=True)
class LookEdge:
    """How much one token of a chosen head looks at another."""

    query: int
    key: int
    probability: float


@dataclass(frozen=True)
class Look:
    """Everything ``unmask look`` shows."""

    model: str
    revision: str | None
    tokens: tuple[LookToken, ...]
    original_tokens: int
    kept_tokens: int
    heads: tuple[LookHead, ...]
    edges: tuple[LookEdge, ...]
    """Of the chosen head; none where no head was chosen."""


def look(
    text: Annotated[str, Parameter(help="the text to read; - reads standard input")],
    pair: Annotated[str | None, Parameter(help="a second text, for models that read pairs")] = None,
    *,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    layer: Annotated[int | None, Parameter(name=["--layer", "-l"], help="show this layer, from 0")] = None,
    head: Annotated[int | None, Parameter(name=["--head", "-H"], help="show this head, from 0")] = None,
    top: Annotated[int, Parameter(help="with a head chosen: the strongest keys shown of each token")] = 3,
    truncation: TruncationOption = "error",
    json: JsonOption = False,
) -> None:
    """Show how an encoder reads a text: its tokens, where each head looks, entropy and sinks.

    With --layer and --head, show where each token looks in that head.
    """
    if text == STANDARD_INPUT:
        text = read_standard_input()
    if head is not None and layer is None:
        raise InvalidRequest(f"--head {head} was given without --layer; name both")
    if top < 1:
        raise InvalidRequest(f"--top is {top}; it must be at least 1")
    loaded = run.load(model)
    view = loaded.attention(text, pair, truncation=truncation)
    if layer is not None:
        view.probabilities(layer, head or 0, slice(0, 0))  # refuses a layer that is not there
    edges = () if layer is None or head is None else _edges(view, layer, head, top)
    found = Look(
        model=loaded.name,
        revision=loaded.revision,
        tokens=_tokens(view),
        original_tokens=view.encoding.original_tokens,
        kept_tokens=view.encoding.kept_tokens,
        heads=tuple(one for one in _heads(view, layer) if head in (None, one.head)),
        edges=edges,
    )
    if json:
        print_json(found)
    else:
        _show(found, loaded)


def _tokens(view: "AttentionView") -> tuple[LookToken, ...]:
    encoding = view.encoding
    return tuple(
        LookToken(
            surface=encoding.surface(i),
            piece=encoding.pieces[i],
            id=int(encoding.ids[i]),
            start=int(encoding.offsets[i, 0]),
            end=int(encoding.offsets[i, 1]),
            special=bool(encoding.special[i]),
        )
        for i in range(len(encoding))
    )


def _heads(view: "AttentionView", layer: int | None) -> tuple[LookHead, ...]:
    """Every head, or those of one layer, which alone is measured then."""
    from unmask.see.taxonomy import label_heads

    atlas = view.open_atlas()
    with progress("cells of attention", 1) as report:
        atlas.measure(lambda _, done, of: report(done, of), layers=None if layer is None else (layer,))
    summaries = view.summaries(layer)
    labels = {
        number: label_heads(atlas.layer(number), view.encoding.special)
        for number in {one.layer for one in summaries}
    }
    found = []
    for one in summaries:
        label = labels[one.layer][one.head]
        found.append(
            LookHead(kind=view.kind(one.layer), label=label.label, label_share=label.share, **vars(one))
        )
    return tuple(found)


def _edges(view: "AttentionView", layer: int, head: int, top: int) -> tuple[LookEdge, ...]:
    strongest = view.top_edges(layer, head, top)
    return tuple(
        LookEdge(query, int(key), float(probability))
        for query in range(len(view))
        for key, probability in zip(strongest.keys[query], strongest.probabilities[query], strict=True)
    )


def _show(found: Look, loaded: "Model") -> None:
    screen = console()
    cut = found.original_tokens - found.kept_tokens
    screen.print(
        f"[bold]{found.model}[/bold], {loaded.layer_count} layers of {loaded.head_count} heads; "
        f"{found.kept_tokens} tokens" + (f" of {found.original_tokens}, {cut} cut off" if cut else "")
    )
    shown = " ".join(f"[dim]{safe(t.surface)}[/dim]" if t.special else safe(t.surface) for t in found.tokens)
    screen.print(f"{shown}\n")
    if found.edges:
        _show_edges(found)
        return
    right = ("entropy", "of even", "distance", "receives")
    columns = ("layer.head", "is", "looks most at", "", *right[:3], "sink", "receives")
    heads = table(None, *columns, right=right)
    for one in found.heads:
        heads.add_row(
            f"{one.layer}.{one.head}",
            one.label,
            f"{one.relation} {one.relation_mass:.2f}",
            _bar(one.relation_mass),
            f"{one.entropy_nats:.2f}",
            f"{one.entropy_share:.0%}",
            f"{one.distance_tokens:.1f}",
            f"{safe(found.tokens[one.sink_token].surface)} ({one.sink_token})",
            f"{one.sink_mass:.2f}",
        )
    screen.print(heads)
    screen.print(f"\n[dim]{_legend(found)}[/dim]")


def _legend(found: Look) -> str:
    """What the columns mean, and what the numbers are where there is no softmax."""
    linear = sorted({one.layer for one in found.heads if one.kind == "kernel"})
    whole = (
        f"Means over the {found.kept_tokens} queries. Is: self, previous, next or offset where at least 90 % "
        "of queries have their strongest key at that place; else the kind of key that gets half of the "
        "attention or more; else broad, or mixed. Looks most at: itself (self), the token before (previous) "
        "or after (next), the first token, or another special token, with the share of attention it gets. "
        "Entropy in nats, and as a share of an even spread over the keys allowed. Distance in tokens. Sink: "
        f"the token that receives most; an even spread gives each {1 / found.kept_tokens:.2f}, but where "
        "layers see a window."
    )
    if not linear:
        return whole
    layers = ", ".join(map(str, linear))
    return (
        f"Kernel weights, not a softmax, in layer{'s' if len(linear) > 1 else ''} {layers}: linear attention "
        f"has no probabilities; these are the weights that it implies, divided by their sum. {whole}"
    )


def _show_edges(found: Look) -> None:
    one = found.heads[0]
    screen = console()
    what = ", by kernel weights (linear attention has no softmax)" if one.kind == "kernel" else ""
    screen.print(
        f"layer {one.layer}, head {one.head}, {one.label}: where each token looks, strongest first{what}"
    )
    shown = table(None, "", "token", "looks at", right=("",))
    for query, token in enumerate(found.tokens):
        keys = "   ".join(
            f"{safe(found.tokens[edge.key].surface)} ({edge.key}) {edge.probability:.3f}"
            for edge in found.edges
            if edge.query == query
        )
        shown.add_row(str(query), safe(token.surface), keys)
    screen.print(shown)


def _bar(share: float, width: int = 8) -> str:
    full, part = divmod(share * width, 1)
    return ("█" * int(full) + SHADES[round(part * (len(SHADES) - 1))]).ljust(width)[:width]
