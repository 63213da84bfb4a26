"""``unmask search``: the passages of an index that fit a query."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from unmask.cli.options import RUN, JsonOption, RunOptions, TruncationOption
from unmask.cli.output import console, print_json
from unmask.cli.search.index import open_index
from unmask.errors import InvalidRequest, TextTooLong
from unmask.search.options import Fusion, Mode, Unit

if TYPE_CHECKING:
    from unmask.search.index import Index
    from unmask.search.values import Explanation, Hit, Span

SHOWN_CHARACTERS = 320
"""Characters of a passage that are printed; --json has all."""

SHOWN_SHARES = 8
"""Shares of an explanation that are printed, the largest."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """How passages are ranked."""

    mode: Annotated[
        Mode | None, Parameter(help="rank by one view, or fuse the ranks of all; default: hybrid if possible")
    ] = None
    unit: Annotated[Unit, Parameter(help="rank passages, or documents by their best passage")] = "passage"
    filter: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="search documents with this metadata, such as 'year>=2020'; repeat it for more"
        ),
    ] = None
    reranker: Annotated[
        str | None,
        Parameter(help="a model that scores the best hits again: a folder or a hub id"),
    ] = None
    candidates: Annotated[
        int | None,
        Parameter(help="hits of the first stage that are scored again; default: 50 with a reranker"),
    ] = None
    fusion: Annotated[
        Fusion, Parameter(help="hybrid search: fuse ranks (rrf), or scores brought to the range 0 to 1")
    ] = "rrf"
    weight: Annotated[
        list[str] | None,
        Parameter(negative="", help="hybrid search: the factor of a view, such as dense=2; repeat it"),
    ] = None
    approximate: Annotated[
        bool,
        Parameter(
            negative="",
            help="score only what is proposed: with --mode dense by a graph of neighbors (HNSW), or in an "
            "index with --dense-bits by codes, with --mode hybrid, too; with --mode multi_vector by the "
            "centroids of an index with --vector-bits",
        ),
    ] = False

    def arguments(self, run: RunOptions) -> dict[str, Any]:
        """As arguments of `Index.search`, with the reranker loaded.

        Raises:
            InvalidRequest: a weight is not VIEW=NUMBER.
            CheckpointError: the reranker cannot be found, read or trusted.
        """
        scorer = None if self.reranker is None else run.of_another_model().load(self.reranker)
        return {
            "mode": self.mode,
            "unit": self.unit,
            "filter": self.filter,
            "reranker": scorer,
            "candidates": self.candidates,
            "fusion": self.fusion,
            "weights": _weights(self.weight or ()),
            "approximate": self.approximate,
        }


RANKING = RankingOptions()


def search(
    index: Annotated[Path, Parameter(help="the folder of an index (see: unmask index)")],
    query: Annotated[str, Parameter(help="what to search for")],
    /,
    *,
    k: Annotated[int, Parameter(name=["--top", "-k", "--k"], help="how many hits")] = 10,
    ranking: RankingOptions = RANKING,
    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="where a model of the index is, if it has moved; another model is refused",
        ),
    ] = None,
    truncation: TruncationOption = "error",
    why: Annotated[bool, Parameter(negative="", help="explain every hit")] = False,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Search an index: the best passages with the document, page and characters of each."""
    if k < 1:
        raise InvalidRequest(f"-k is {k}; it must be at least 1")
    opened = open_index(index, model or (), run)
    searched = partial(opened.search, query, k, **ranking.arguments(run), why=why)
    truncated = False
    try:
        hits = searched()
    except TextTooLong:
        if truncation == "error":
            raise
        truncated = True
        hits = searched(truncation="end")
    if json:
        print_json(_as_json(opened, query, hits, why=why) | {"query_truncated": truncated})
        return
    if truncated:
        print("the query is longer than a model of the index reads; its end was dropped", file=sys.stderr)
    if not hits:
        print("no passage was found")
    for rank, hit in enumerate(hits, start=1):
        _show(opened, query, rank, hit)


def _weights(options: Sequence[str]) -> dict[Any, float]:
    """Weights by view, from ``VIEW=NUMBER``.

    Raises:
        InvalidRequest: one is something else.
    """
    weights: dict[Any, float] = {}
    for option in options:
        view, _, number = option.partition("=")
        try:
            weights[view] = float(number)
        except ValueError:
            raise InvalidRequest(f"--weight is {option!r}; write VIEW=NUMBER, such as dense=2") from None
    return weights


def _as_json(opened: "Index", query: str, hits: Sequence["Hit"], *, why: bool) -> dict[str, object]:
    """Hits without explanations unless they were asked for."""
    names = ("document", "page", "start", "end", "score", "text", "title", "metadata")
    rows = []
    for hit in hits:
        row = {name: getattr(hit, name) for name in names}
        if hit.first_score is not None:
            row["first_score"] = hit.first_score
        if why:
            row["why"] = hit.why
        rows.append(row)
    return {"index": opened.path, "generation": opened.generation, "query": query, "hits": rows}


def _show(opened: "Index", query: str, rank: int, hit: "Hit") -> None:
    page = "" if hit.page is None else f", page {hit.page}"
    place = f"{hit.document}{page}, characters {hit.start:,} to {hit.end:,}"
    screen = console(100)
    heading = Text(f"{rank}. ", "bold").append(place, "cyan").append(f"  {hit.score:.4f}")
    if hit.title and hit.title not in hit.text[: len(hit.title) + 2]:
        heading.append(f"  {hit.title}")
    screen.print(heading)
    screen.print(_snippet(hit, opened.matches(query, hit)))
    for explanation in hit.why or ():
        screen.print(_explained(explanation))
    screen.print()


def _snippet(hit: "Hit", spans: Sequence["Span"]) -> Text:
    """The part of the passage with the most matches, which are bold."""
    best = 0
    if len(hit.text) > SHOWN_CHARACTERS and spans:
        starts = [start - hit.start for start, _ in spans]
        counts = [sum(0 <= other - start < SHOWN_CHARACTERS - 60 for other in starts) for start in starts]
        best = max(0, starts[counts.index(max(counts))] - 60)
        best = 0 if best == 0 else hit.text.find(" ", best) + 1 or best
    until = min(len(hit.text), best + SHOWN_CHARACTERS)
    shown = "".join(c if c.isprintable() else " " for c in hit.text[best:until])
    text = Text(shown)
    for start, end in spans:
        begin, stop = start - hit.start - best, end - hit.start - best
        if begin < len(shown) and stop > 0:
            text.stylize("bold yellow", max(0, begin), stop)
    line = Text().append("… " if best else "   ", "dim").append_text(text)
    return line.append(" …" if until < len(hit.text) else "", "dim")


def _explained(explanation: "Explanation") -> Text:
    """One line: the view, its score, its rank and the largest shares."""
    rank = "" if explanation.rank is None else f", rank {explanation.rank}"
    line = Text(f"   {explanation.view} {explanation.score:.4f}{rank}: ", "dim")
    largest = sorted(explanation.shares, key=lambda share: -abs(share.share))[:SHOWN_SHARES]
    line.append("  ".join(f"{share.label} {share.share:+.3f}" for share in largest))
    rest = sum(share.share for share in explanation.shares) - sum(share.share for share in largest)
    if len(explanation.shares) > SHOWN_SHARES:
        line.append(f"  {len(explanation.shares) - SHOWN_SHARES} others {rest:+.3f}")
    if explanation.special:
        line.append(f"  special tokens {explanation.special:+.3f}")
    if explanation.uncompressed_score is not None:
        difference = explanation.score - explanation.uncompressed_score
        line.append(f"  compression {difference:+.4f} (without: {explanation.uncompressed_score:.4f})")
    if explanation.first_score is not None:
        difference = explanation.first_score - explanation.score
        line.append(f"  by its code {difference:+.4f} (first stage: {explanation.first_score:.4f})")
    return line
