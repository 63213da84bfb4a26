"""``unmask look``: tokens, heads and sinks of one text, in the terminal; a map as a figure and as a table."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.optional import require
from unmask.cli.look.views import (
    GlobalSentencesOption,
    GlobalWordsOption,
    look_against,
    look_global,
    show_overview,
    show_patterns,
)
from unmask.cli.options import (
    RUN,
    JsonOption,
    ModelOption,
    RunOptions,
    TextArgument,
    TruncationOption,
    how_many,
)
from unmask.cli.output import console, present, print_legend, progress, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unmask.interpret import AttentionView
    from unmask.models.load import Model


LEGEND = """\
Means over the {queries} queries. A head is LAYER.HEAD, both from 0.
pattern        what the head does beyond special tokens, where these leave a
               tenth of the attention: self, previous, next or offset: at
               least 90 % of queries attend most to that position;
               punctuation or repeat (the same token elsewhere): those keys
               get at least half; diffuse: near uniform; mixed: none of
               these. first or special: nothing but that
attends to     the relation that gets most attention, and its share: the token
               itself (self), the one before (previous) or after (next), the
               first token, or the other special tokens
entropy        in nats, and as a share of the entropy of uniform attention
distance       mean distance between query and key, in tokens
most attended  the token that receives most attention (its position), and how
               much it receives; uniform attention gives each token {uniform:.2f},
               unless layers have a window or causal attention"""


Pool = Literal["mean", "max"]
"""`unmask.interpret.attention.rectangles.Pool`, which is not imported before a model is loaded."""


PictureOption = Annotated[
    Path | None,
    Parameter(
        help="write a figure, .svg, .pdf or .png: of all heads by layer; with --layer and --head, or --pool, "
        "of that map",
    ),
]


CsvOption = Annotated[
    Path | None,
    Parameter(help="with --layer and --head, or --pool: write the map, queries by keys, as CSV"),
]


PoolOption = Annotated[
    Pool | None,
    Parameter(help="show the mean or the maximum over the heads of --layer, or over all heads"),
]


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
    """Statistics of one head on the text: `unmask.interpret.HeadSummary` and a label."""

    layer: int
    head: int
    kind: str
    """Kind of weights: ``softmax``, or the ``kernel`` weights implied by linear attention."""
    label: str
    """One of `unmask.interpret.attention.layer_statistics.LABELS`."""
    label_share: float
    """The value that decided the label, see `unmask.interpret.attention.layer_statistics.HeadLabel`."""
    special_share: float
    """Mean attention to special tokens, of the queries that are not special."""
    entropy_nats: float
    entropy_share: float
    distance_tokens: float
    sink_token: int
    sink_mass: float
    relation: str
    relation_mass: float


@dataclass(frozen=True)
class LookEdge:
    """Attention from one token to another in a chosen head."""

    query: int
    key: int
    probability: float


@dataclass(frozen=True)
class Look:
    """Everything ``unmask look`` shows."""

    model: str
    revision: str | None
    tokens: tuple[LookToken, ...]
    original_tokens: int | None
    """None if only the beginning of a very long text was tokenized."""
    kept_tokens: int
    heads: tuple[LookHead, ...]
    edges: tuple[LookEdge, ...]
    """Edges of the chosen head, or of the pooled map; empty if none was chosen."""
    pool: str | None
    """``mean`` or ``max`` over the heads of `layer`, or over all heads where that is None."""
    layer: int | None
    """The layer that was asked for."""


def look(
    text: TextArgument = None,
    pair: Annotated[str | None, Parameter(help="a second text, for models that read pairs")] = None,
    *,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    layer: Annotated[int | None, Parameter(name=["--layer", "-l"], help="show this layer, from 0")] = None,
    head: Annotated[int | None, Parameter(name=["--head", "-H"], help="show this head, from 0")] = None,
    top: Annotated[int, how_many("with --head: number of keys to show per token")] = 3,
    against: Annotated[
        str | None, Parameter(help="an earlier version of the text: show what changed")
    ] = None,
    overview: Annotated[
        bool, Parameter(negative="", help="say in one sentence each what the model did with the text")
    ] = False,
    patterns: Annotated[
        bool,
        Parameter(negative="", help="score every head for lines, diagonals, blocks and distant links"),
    ] = False,
    pool: PoolOption = None,
    global_words: GlobalWordsOption = None,
    global_sentences: GlobalSentencesOption = None,
    picture: PictureOption = None,
    csv: CsvOption = None,
    truncation: TruncationOption = "error",
    json: JsonOption = False,
) -> None:
    """Show how an encoder reads a text: its tokens, and the pattern, entropy and sink of each head.

    With --layer and --head, show what each token attends to in that head; with --pool, in the mean or the
    maximum of heads. --picture writes that map as a figure for a paper, --csv as a table; without a map,
    --picture draws all heads by layer, of a text of any length: distance, entropy, sink. With --overview, say
    what stands out: the clearest heads, the attention sink, where hidden states change, the head with the
    largest effect. With --patterns, score the shape of each head's map: vertical lines, diagonals, blocks,
    distant links. With --against, show what changed: words, their states, the embedding, and the attention
    that each head moved. With --global-words or --global-sentences, make tokens global in an encoder such as
    Longformer, and show what changed.
    """
    text = read_text(text)
    chosen = (global_words or [], global_sentences or [])
    views = {
        "--against": against is not None,
        "--overview": overview,
        "--patterns": patterns,
        "--pool": pool is not None,
        "--global-words or --global-sentences": any(chosen),
    }
    _check_views([name for name, chosen in views.items() if chosen], layer, head)
    of_heads = layer is None and not any(views.values())
    check_picture(picture, csv, has_map=head is not None or pool is not None, of_heads=of_heads)
    if top < 1:
        raise InvalidRequest(f"--top is {top}; it must be at least 1")
    loaded = run.load(model)
    if any(chosen):
        encoding = loaded.tokenize([text], None if pair is None else [pair], truncation=truncation)[0]
        look_global(loaded, encoding, *chosen, json=json)
        return
    view = loaded.attention(text, pair, truncation=truncation)
    if against is not None:
        look_against(loaded, loaded.attention(against, pair, truncation=truncation), view, json=json)
        return
    if overview:
        show_overview(view, loaded, json=json)
        return
    if patterns:
        show_patterns(view, loaded, layer, json=json)
        return
    if layer is not None:
        view.probabilities(layer, head or 0, slice(0, 0))  # rejects a layer that does not exist
    write_maps(view, layer, head, pool, picture=picture, csv=csv)
    edges = () if head is None and pool is None else _edges(view, layer, head, pool, top)
    result = Look(
        model=loaded.name,
        revision=loaded.revision,
        tokens=_tokens(view),
        original_tokens=view.encoding.original_tokens if view.encoding.counted_whole else None,
        kept_tokens=view.encoding.kept_tokens,
        heads=() if pool else tuple(each for each in _heads(view, layer) if head in (None, each.head)),
        edges=edges,
        pool=pool,
        layer=layer,
    )
    present(result, lambda result: _show(result, loaded), json=json)


def _check_views(views: list[str], layer: int | None, head: int | None) -> None:
    """Refuse options that belong to different views of the text.

    Raises:
        InvalidRequest: they do.
    """
    if head is not None and layer is None:
        raise InvalidRequest(f"--head {head} was given without --layer; name both")
    if len(views) > 1:
        raise InvalidRequest(f"{' and '.join(views)} show different things; leave one out")
    if not views:
        return
    if layer is not None and views[0] not in ("--patterns", "--pool"):
        raise InvalidRequest(f"{views[0]} is about all layers, and --layer {layer} was given; leave one out")
    if head is not None:
        raise InvalidRequest(f"{views[0]} is about all heads, and --head {head} was given; leave one out")


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
    """Every head, or those of one layer, in which case only that layer is measured."""
    from unmask.interpret.attention.layer_statistics import label_heads

    statistics = view.open_statistics()
    with progress("cells of attention", 1) as report:
        statistics.measure(lambda _, done, of: report(done, of), layers=None if layer is None else (layer,))
    summaries = view.summaries(layer)
    labels = {
        number: label_heads(statistics.layer(number), view.encoding.special)
        for number in {summary.layer for summary in summaries}
    }
    heads = []
    for summary in summaries:
        label = labels[summary.layer][summary.head]
        heads.append(
            LookHead(
                kind=view.kind(summary.layer),
                label=label.label,
                label_share=label.share,
                special_share=label.special,
                **vars(summary),
            )
        )
    return tuple(heads)


def _edges(
    view: "AttentionView", layer: int | None, head: int | None, pool: Pool | None, top: int
) -> tuple[LookEdge, ...]:
    """The largest weights of each query in the map of a head, or in that of ``pool``."""
    if pool is None and layer is not None and head is not None:
        strongest = view.topk(layer, head, top)
        rows = list(zip(strongest.keys, strongest.probabilities, strict=True))
    else:
        from unmask.interpret.attention.rectangles import top_of_rows

        rows = list(top_of_rows(len(view), lambda rows_of: map_rows(view, layer, head, pool, rows_of), top))
    return tuple(
        LookEdge(query, int(key), float(weight))
        for query, (keys, weights) in enumerate(rows)
        for key, weight in zip(keys, weights, strict=True)
    )


def _show(result: Look, loaded: "Model") -> None:
    screen = console()
    if result.original_tokens is None:
        tokens = f"the first {result.kept_tokens} tokens of a longer text"
    else:
        left_out = result.original_tokens - result.kept_tokens
        tokens = f"{result.kept_tokens} tokens"
        tokens += f" of {result.original_tokens}, {left_out} truncated" if left_out else ""
    screen.print(
        f"[bold]{result.model}[/bold], {loaded.layer_count} layers of {loaded.head_count} heads; {tokens}"
    )
    shown = " ".join(f"[dim]{safe(t.surface)}[/dim]" if t.special else safe(t.surface) for t in result.tokens)
    screen.print(f"{shown}\n")
    if result.edges:
        _show_edges(result)
        return
    right = ("entropy", "distance", "receives")
    columns = ("head", "pattern", "attends to", "entropy", "distance", "most attended", "receives")
    heads = table(None, *columns, right=right)
    for each in result.heads:
        heads.add_row(
            f"{each.layer}.{each.head}",
            each.label,
            f"{each.relation} {each.relation_mass:.2f}",
            f"{each.entropy_nats:.2f} ({each.entropy_share:.0%})",
            f"{each.distance_tokens:.1f}",
            f"{safe(_shortened(result.tokens[each.sink_token].surface))} ({each.sink_token})",
            f"{each.sink_mass:.2f}",
        )
    screen.print(heads)
    print_legend(_legend(result))


def _shortened(surface: str, most: int = 10) -> str:
    return surface if len(surface) <= most else f"{surface[: most - 1]}…"


def _legend(result: Look) -> str:
    """The meaning of the columns, and of the numbers for linear attention."""
    linear = sorted({each.layer for each in result.heads if each.kind == "kernel"})
    whole = LEGEND.format(queries=result.kept_tokens, uniform=1 / result.kept_tokens)
    if not linear:
        return whole
    layers = ", ".join(map(str, linear))
    return (
        f"Kernel weights, not a softmax, in layer{'s' if len(linear) > 1 else ''} {layers}:\n"
        "linear attention has no probabilities; these are the weights that it implies,\n"
        f"divided by their sum.\n{whole}"
    )


def _show_edges(result: Look) -> None:
    screen = console()
    if result.pool is None:
        each = result.heads[0]
        what = ", by kernel weights (linear attention has no softmax)" if each.kind == "kernel" else ""
        whose = f"layer {each.layer}, head {each.head}, {each.label}"
    else:
        what = "" if result.pool == "mean" else "; a maximum is no distribution, its rows sum to more than 1"
        whose = "all layers" if result.layer is None else f"layer {result.layer}"
        whose += f", {result.pool} over heads"
    screen.print(f"{whose}: which keys each token attends to most{what}")
    grid = table(None, "", "query", "keys", right=("",))
    for query, token in enumerate(result.tokens):
        keys = "   ".join(
            f"{safe(result.tokens[edge.key].surface)} ({edge.key}) {edge.probability:.3f}"
            for edge in result.edges
            if edge.query == query
        )
        grid.add_row(str(query), safe(token.surface), keys)
    screen.print(grid)


def check_picture(path: Path | None, csv: Path | None, *, has_map: bool, of_heads: bool) -> None:
    """Fail before a model is loaded if the picture or the table could not be written.

    Raises:
        InvalidRequest: no map was asked for, or the file of the picture has another ending.
        MissingExtra: matplotlib is not installed.
        OutputError: a file cannot be written.
    """
    for name, file in (("--picture", path), ("--csv", csv)):
        if file is not None and not has_map and (file is csv or not of_heads):
            raise InvalidRequest(f"{name} writes one map; name it with --layer and --head, or with --pool")
    if csv is not None:
        check_can_write(csv)
    if path is None:
        return
    from unmask.interpret.figures.paper import check_format

    check_format(path)
    check_can_write(path)
    require("figures")


def write_maps(
    view: "AttentionView",
    layer: int | None,
    head: int | None,
    pool: Pool | None,
    *,
    picture: Path | None,
    csv: Path | None,
) -> None:
    """Write the map of one head, or that of ``pool``, to the files that are named; else a figure of heads."""
    layers = "all layers" if layer is None else f"layer {layer}"
    what = f"the map of {layers}, head {head}" if pool is None else f"the map of {layers}, {pool} over heads"
    if picture is not None:
        from unmask.interpret.figures.attention import heads_figure, map_figure, pooled_figure
        from unmask.interpret.figures.paper import save_figure

        if pool is None and layer is None:
            what = "all heads by layer"
            save_figure(heads_figure(view), picture)
        elif pool is not None:
            save_figure(pooled_figure(view, layer, pool), picture)
        else:
            assert layer is not None
            assert head is not None
            save_figure(map_figure(view, layer, head), picture)
    if csv is not None:
        from unmask.interpret.attention.rectangles import row_slices, write_map

        parts = row_slices(len(view))
        write_map(csv, view.encoding, (map_rows(view, layer, head, pool, rows) for rows in parts))
    for path in (picture, csv):
        if path is not None:
            print(f"{path}: {what}", file=sys.stderr)


def map_rows(
    view: "AttentionView", layer: int | None, head: int | None, pool: Pool | None, rows: slice
) -> "NDArray[np.float32]":
    """Some rows of the map of one head, or of that of ``pool``."""
    if pool is not None:
        return view.pooled(layer, pool, rows)
    assert layer is not None
    assert head is not None
    return view.probabilities(layer, head, rows)
