"""``unmask look TEXT --against OTHER``: what changes between two texts in one encoder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unmask.cli.output import console, print_json, safe, table

if TYPE_CHECKING:
    from unmask.interpret import AttentionView
    from unmask.interpret.attention.comparison import AttentionChange, TextComparison
    from unmask.models.load import Model

MOST_HEADS = 8
"""Heads listed for people; ``--json`` gives all."""

LEGEND = """\
moved          share of a word's attention that goes to other words than in the
               first text, mean over {queries} of the {of} words that both have
to removed     attention in the first text to words that the second does not have
to inserted    attention in the second text to words that the first did not have"""


@dataclass(frozen=True)
class LookPair:
    """A word of either text and what became of it."""

    change: str
    before: str | None
    after: str | None
    state_cosine: float | None
    """Of its state after the last layer, None if one text does not have it."""


@dataclass(frozen=True)
class LookHeadChange:
    """How much the attention of a head changed, see `AttentionChange` of `unmask.interpret`."""

    layer: int
    head: int
    moved: float
    to_removed: float
    to_inserted: float


@dataclass(frozen=True)
class LookAgainst:
    """Everything ``unmask look --against`` shows: the change from ``against`` to the text."""

    model: str
    revision: str | None
    embedding_cosine: float
    words: tuple[LookPair, ...]
    heads: tuple[LookHeadChange, ...]
    """Those whose attention moved most first."""
    queries: int
    of: int


def look_against(loaded: "Model", before: "AttentionView", after: "AttentionView", *, json: bool) -> None:
    """Compare two texts and print what changed."""
    from unmask.interpret.attention.comparison import attention_change, compare_texts
    from unmask.spec import PooledVector

    head = loaded.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None
    texts = compare_texts(before.cache, after.cache, head=pooled)
    attention = attention_change(before.cache, after.cache)
    found = LookAgainst(
        model=loaded.name,
        revision=loaded.revision,
        embedding_cosine=texts.embedding_cosine,
        words=_words(texts),
        heads=_heads(after, attention),
        queries=attention.queries,
        of=attention.of,
    )
    if json:
        print_json(found)
    else:
        _show(found)


def _words(texts: "TextComparison") -> tuple[LookPair, ...]:
    cosines = iter(texts.state_cosine[-1].tolist())
    return tuple(
        LookPair(
            pair.change,
            None if pair.before is None else texts.before.surface(pair.before).strip(),
            None if pair.after is None else texts.after.surface(pair.after).strip(),
            None if pair.before is None or pair.after is None else next(cosines),
        )
        for pair in texts.pairs
    )


def _heads(view: "AttentionView", change: "AttentionChange") -> tuple[LookHeadChange, ...]:
    heads = [
        LookHeadChange(
            layer,
            head,
            float(change.moved[layer, head]),
            float(change.to_removed[layer, head]),
            float(change.to_inserted[layer, head]),
        )
        for layer in range(view.layer_count)
        for head in range(view.cache.heads(layer))
    ]
    return tuple(sorted(heads, key=lambda one: (-one.moved, one.layer, one.head)))


def _show(found: LookAgainst) -> None:
    screen = console()
    screen.print(f"[bold]{found.model}[/bold]; cosine of the embeddings {found.embedding_cosine:.4f}")
    words = table(None, "word", "was", "change", "cosine of states", right=("cosine of states",))
    for word in found.words:
        cosine = "" if word.state_cosine is None else f"{word.state_cosine:.4f}"
        was = "" if word.before == word.after else safe(word.before or "")
        words.add_row(safe(word.after or ""), was, "" if word.change == "kept" else word.change, cosine)
    screen.print(words)
    heads = table(
        None, "head", "moved", "to removed", "to inserted", right=("moved", "to removed", "to inserted")
    )
    for one in found.heads[:MOST_HEADS]:
        heads.add_row(
            f"{one.layer}.{one.head}", f"{one.moved:.1%}", f"{one.to_removed:.1%}", f"{one.to_inserted:.1%}"
        )
    screen.print(heads)
    screen.print(f"\n[dim]{LEGEND.format(queries=found.queries, of=found.of)}[/dim]")
