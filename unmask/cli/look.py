"""``unmask look``: tokens, heads and sinks of one text, in the terminal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, read_standard_input
from unmask.cli.options import (
    CompatOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    TooLongOption,
)
from unmask.cli.output import console, print_json, safe, table

if TYPE_CHECKING:
    from unmask.loaded import Model
    from unmask.see import AttentionView, HeadSummary

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
    total_tokens: int
    kept_tokens: int
    heads: "tuple[HeadSummary, ...]"
    edges: tuple[LookEdge, ...]
    """Of the chosen head; none where no head was chosen."""


def look(
    text: Annotated[str, Parameter(help="the text to read; - reads standard input")],
    pair: Annotated[str | None, Parameter(help="a second text, for models that read pairs")] = None,
    *,
    model: ModelOption = "default",
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    compat: CompatOption = "published",
    layer: Annotated[int | None, Parameter(name=["--layer", "-l"], help="show this layer, from 0")] = None,
    head: Annotated[int | None, Parameter(name=["--head", "-H"], help="show this head, from 0")] = None,
    top: Annotated[int, Parameter(help="with a head chosen: the strongest keys shown of each token")] = 3,
    too_long: TooLongOption = "error",
    json: JsonOption = False,
) -> None:
    """Show how an encoder reads a text: its tokens, where each head looks, entropy and sinks.

    With --layer and --head, show where each token looks in that head.
    """
    if text == STANDARD_INPUT:
        text = read_standard_input()
    from unmask.errors import InvalidRequest
    from unmask.loaded import load

    if head is not None and layer is None:
        raise InvalidRequest(f"--head {head} was given without --layer; name both")
    loaded = load(model, dtype=dtype, revision=revision, compat=compat)
    view = loaded.attention(text, pair, too_long=too_long)
    edges = () if layer is None or head is None else _edges(view, layer, head, top)
    if layer is not None:
        view.probabilities(layer, head or 0, slice(0, 0))  # refuses a layer that is not there
    found = Look(
        model=loaded.name,
        revision=loaded.revision,
        tokens=_tokens(view),
        total_tokens=view.encoding.total_tokens,
        kept_tokens=view.encoding.kept_tokens,
        heads=tuple(s for s in view.summaries() if layer in (None, s.layer) and head in (None, s.head)),
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
            start=int(encoding.spans[i, 0]),
            end=int(encoding.spans[i, 1]),
            special=bool(encoding.special[i]),
        )
        for i in range(len(encoding))
    )


def _edges(view: "AttentionView", layer: int, head: int, top: int) -> tuple[LookEdge, ...]:
    strongest = view.top_edges(layer, head, top)
    return tuple(
        LookEdge(query, int(key), float(probability))
        for query in range(len(view))
        for key, probability in zip(strongest.keys[query], strongest.probabilities[query], strict=True)
    )


def _show(found: Look, loaded: "Model") -> None:
    screen = console()
    cut = found.total_tokens - found.kept_tokens
    screen.print(
        f"[bold]{found.model}[/bold], {loaded.layer_count} layers of {loaded.head_count} heads; "
        f"{found.kept_tokens} tokens" + (f" of {found.total_tokens}, {cut} cut off" if cut else "")
    )
    shown = " ".join(f"[dim]{safe(t.surface)}[/dim]" if t.special else safe(t.surface) for t in found.tokens)
    screen.print(f"{shown}\n")
    if found.edges:
        _show_edges(found)
        return
    right = ("entropy", "of even", "distance", "receives")
    heads = table(None, "layer.head", "looks most at", "", *right[:3], "sink", "receives", right=right)
    for one in found.heads:
        heads.add_row(
            f"{one.layer}.{one.head}",
            f"{one.relation} {one.relation_mass:.2f}",
            _bar(one.relation_mass),
            f"{one.entropy_nats:.2f}",
            f"{one.entropy_share:.0%}",
            f"{one.distance_tokens:.1f}",
            f"{safe(found.tokens[one.sink_token].surface)} ({one.sink_token})",
            f"{one.sink_mass:.2f}",
        )
    screen.print(heads)
    screen.print(
        f"\n[dim]Means over the {found.kept_tokens} queries. Looks most at: itself (self), the token before "
        "(previous) or after (next), the first token, or another special token, with the share of "
        "attention it gets. Entropy in nats, and as a share of an even spread. Distance in tokens. Sink: "
        f"the token that receives most; an even spread gives each {1 / found.kept_tokens:.2f}.[/dim]"
    )


def _show_edges(found: Look) -> None:
    one = found.heads[0]
    screen = console()
    screen.print(f"layer {one.layer}, head {one.head}: where each token looks, strongest first")
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
