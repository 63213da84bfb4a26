"""``unmask look --patterns``: the named patterns of every head's map."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unmask.cli.output import console, print_json, progress, safe, table

if TYPE_CHECKING:
    from unmask.interpret import AttentionView
    from unmask.models.load import Model

LEGEND = """\
0 is what the baseline gives, 1 the pure pattern; the pattern named is the largest, from {clear} on.
vertical   one key receives attention from all queries; baseline: 1 / tokens
previous   the token before, next: the one after, self: the token itself;
           baseline: uniform attention
block      attention stays in the sentence (of a pair: in the text), beyond
           the neighbors; baseline: borders moved to the middle of sentences
distant    single words {distant} tokens away or more, above what they receive
           on average; baseline: uniform attention"""


@dataclass(frozen=True)
class PatternsOfHead:
    """One head: see `unmask.interpret.attention.patterns`."""

    layer: int
    head: int
    pattern: str
    """The pattern with the largest score, or ``none``."""
    scores: dict[str, float | None]
    """None where the text has no such keys."""


@dataclass(frozen=True)
class Patterns:
    """Everything ``unmask look --patterns`` shows."""

    model: str
    revision: str | None
    tokens: int
    segments: int
    """Sentences, or texts of a pair, that blocks are looked for in."""
    heads: tuple[PatternsOfHead, ...]


def show_patterns(view: "AttentionView", loaded: "Model", layer: int | None, *, json: bool) -> None:
    """Print the scores of every head, or of those of one layer."""
    from unmask.interpret.attention.patterns import CLEAR, DISTANT, SHAPES, head_patterns

    layers = tuple(range(view.layer_count)) if layer is None else (layer,)
    with progress("steps", 1) as report:
        found = head_patterns(
            view.cache, view.open_statistics(), layers=layers, watch=lambda _, done, of: report(done, of)
        )
    heads = tuple(
        PatternsOfHead(number, head, found.named(number, head)[0], found.of(number, head))
        for number in layers
        for head in range(view.cache.heads(number))
    )
    made = Patterns(loaded.name, loaded.revision, len(view), found.segments, heads)
    if json:
        print_json(made)
        return
    screen = console()
    kind = "texts" if view.encoding.pair is not None else "sentences"
    screen.print(f"[bold]{safe(made.model)}[/bold]; {made.tokens} tokens, {made.segments} {kind}\n")
    shown = table(None, "head", "pattern", *SHAPES, right=SHAPES)
    for one in made.heads:
        scores = ("-" if score is None else f"{score:.2f}" for score in one.scores.values())
        shown.add_row(f"{one.layer}.{one.head}", one.pattern, *scores)
    screen.print(shown)
    screen.print(f"\n[dim]{LEGEND.format(clear=CLEAR, distant=DISTANT)}[/dim]")
