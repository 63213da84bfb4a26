"""The other views of ``unmask look``: what changed, findings, and the patterns of maps."""

from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.output import console, present, print_json, print_legend, progress, safe, table

if TYPE_CHECKING:
    from unmask.interpret import AttentionView
    from unmask.interpret.attention.comparison import AttentionChange, GlobalEffect, TextComparison
    from unmask.models.load import Model
    from unmask.text import Encoding


MOST_HEADS = 8
"""Heads listed for people; ``--json`` gives all."""


AGAINST_LEGEND = """\
moved          share of a word's attention that goes to other words than in the
               first text, mean over {queries} of the {of} words that both have
to removed     attention in the first text to words that the second does not have
to inserted    attention in the second text to words that the first did not have"""


GlobalWordsOption = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True,
        negative="",
        help="in encoders with global tokens: words whose tokens become global; show what this changes",
    ),
]


GlobalSentencesOption = Annotated[
    list[int] | None,
    Parameter(consume_multiple=True, negative="", help="the same for sentences, by number from 0"),
]


GLOBAL_LEGEND = """\
cosine of states   between a word's last state before and after
received           attention to the tokens that became global, mean over queries
moved              share of a word's attention that goes to other words than before"""


WIDTH = 88
"""Characters of a line."""


PATTERNS_LEGEND = """\
0 is what the baseline gives, 1 the pure pattern; the pattern named is the largest, from {clear} on.
vertical   one key receives attention from all queries; baseline: 1 / tokens
previous   the token before, next: the one after, self: the token itself;
           baseline: uniform attention
block      attention stays in the sentence (of a pair: in the text), beyond
           the neighbors; baseline: borders moved to the middle of sentences
distant    single words {distant} tokens away or more, above what they receive
           on average; baseline: uniform attention"""


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


@dataclass(frozen=True)
class LookGlobalWord:
    """A word of the text and its state under both choices."""

    text: str
    became_global: bool
    state_cosine: float
    """Of its states after the last layer."""


@dataclass(frozen=True)
class LookGlobalHead:
    """What a head gives the tokens that became global, and how much of its attention it moved."""

    layer: int
    head: int
    received_before: float
    received_after: float
    moved: float


@dataclass(frozen=True)
class LookGlobalLogits:
    """The logits of a head of whole texts."""

    role: str
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class LookGlobal:
    """Everything ``unmask look --global-words`` shows."""

    model: str
    revision: str | None
    before: tuple[int, ...]
    """The global tokens that the encoder's head was trained with."""
    after: tuple[int, ...]
    embedding_cosine: float
    logits: tuple[LookGlobalLogits, ...]
    words: tuple[LookGlobalWord, ...]
    heads: tuple[LookGlobalHead, ...]
    """Those whose attention moved most first."""


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


def look_against(loaded: "Model", before: "AttentionView", after: "AttentionView", *, json: bool) -> None:
    """Compare two texts and print what changed."""
    from unmask.interpret.attention.comparison import attention_change, compare_texts
    from unmask.spec import PooledVector

    head = loaded.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None
    texts = compare_texts(before.cache, after.cache, head=pooled)
    attention = attention_change(before.cache, after.cache)
    result = LookAgainst(
        model=loaded.name,
        revision=loaded.revision,
        embedding_cosine=texts.embedding_cosine,
        words=_compared_words(texts),
        heads=_changed_heads(after, attention),
        queries=attention.queries,
        of=attention.of,
    )
    present(result, _show_against, json=json)


def _compared_words(texts: "TextComparison") -> tuple[LookPair, ...]:
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


def _changed_heads(view: "AttentionView", change: "AttentionChange") -> tuple[LookHeadChange, ...]:
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
    return tuple(sorted(heads, key=lambda each: (-each.moved, each.layer, each.head)))


def _show_against(result: LookAgainst) -> None:
    screen = console()
    screen.print(f"[bold]{result.model}[/bold]; cosine of the embeddings {result.embedding_cosine:.4f}")
    words = table(None, "word", "was", "change", "cosine of states", right=("cosine of states",))
    for word in result.words:
        cosine = "" if word.state_cosine is None else f"{word.state_cosine:.4f}"
        was = "" if word.before == word.after else safe(word.before or "")
        words.add_row(safe(word.after or ""), was, "" if word.change == "kept" else word.change, cosine)
    screen.print(words)
    heads = table(
        None, "head", "moved", "to removed", "to inserted", right=("moved", "to removed", "to inserted")
    )
    for each in result.heads[:MOST_HEADS]:
        heads.add_row(
            f"{each.layer}.{each.head}",
            f"{each.moved:.1%}",
            f"{each.to_removed:.1%}",
            f"{each.to_inserted:.1%}",
        )
    screen.print(heads)
    print_legend(AGAINST_LEGEND.format(queries=result.queries, of=result.of))


def look_global(
    loaded: "Model", encoding: "Encoding", words: list[str], sentences: list[int], *, json: bool
) -> None:
    """Make tokens global besides those that the head was trained with, and print what changed."""
    from unmask.interpret.attention.comparison import GlobalText, global_effect
    from unmask.spec import PooledVector
    from unmask.spec.global_tokens import trained_global_tokens

    trained = trained_global_tokens(loaded.spec, paired=encoding.pair is not None)
    choice = GlobalText(tuple(words), tuple(sentences), beside=trained)
    head = loaded.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None
    effect = global_effect(loaded.encoder, encoding, choice, head=pooled)
    result = LookGlobal(
        model=loaded.name,
        revision=loaded.revision,
        before=effect.before,
        after=effect.after,
        embedding_cosine=effect.states.embedding_cosine,
        logits=tuple(
            LookGlobalLogits(role, tuple(before.tolist()), tuple(after.tolist()))
            for role, (before, after) in effect.logits.items()
        ),
        words=_global_words(effect),
        heads=_global_heads(effect),
    )
    if json:
        print_json(result)
    else:
        _show_global(result, [encoding.surface(token) for token in effect.added])


def _global_words(effect: "GlobalEffect") -> tuple[LookGlobalWord, ...]:
    words = effect.states.before
    added = {int(words.of_token[token]) for token in effect.added}
    return tuple(
        LookGlobalWord(words.surface(word).strip(), word in added, float(cosine))
        for word, cosine in enumerate(effect.states.state_cosine[-1])
    )


def _global_heads(effect: "GlobalEffect") -> tuple[LookGlobalHead, ...]:
    layers, heads = effect.attention.moved.shape
    every = [
        LookGlobalHead(
            layer,
            head,
            float(effect.received_before[layer, head]),
            float(effect.received_after[layer, head]),
            float(effect.attention.moved[layer, head]),
        )
        for layer in range(layers)
        for head in range(heads)
    ]
    return tuple(sorted(every, key=lambda each: (-each.moved, each.layer, each.head)))


def _show_global(result: LookGlobal, added: list[str]) -> None:
    screen = console()
    screen.print(
        f"[bold]{result.model}[/bold]; {len(result.before)} global tokens as trained, "
        f"{len(result.after)} now; new: {safe(' '.join(added))}"
    )
    screen.print(f"cosine of the embeddings {result.embedding_cosine:.4f}")
    for each in result.logits:
        before, after = (" ".join(f"{x:.3f}" for x in side) for side in (each.before, each.after))
        screen.print(f"logits of the {each.role} head: {before} before, {after} after")
    words = table(None, "word", "global", "cosine of states", right=("cosine of states",))
    for word in result.words:
        words.add_row(safe(word.text), "new" if word.became_global else "", f"{word.state_cosine:.4f}")
    screen.print(words)
    numbers = ("received before", "received after", "moved")
    heads = table(None, "head", *numbers, right=numbers)
    for head in result.heads[:MOST_HEADS]:
        heads.add_row(
            f"{head.layer}.{head.head}",
            f"{head.received_before:.3f}",
            f"{head.received_after:.3f}",
            f"{head.moved:.1%}",
        )
    screen.print(heads)
    print_legend(GLOBAL_LEGEND)


def show_overview(view: "AttentionView", loaded: "Model", *, json: bool) -> None:
    """Print the findings of a text."""
    from unmask.interpret.effects.target import Embedding
    from unmask.interpret.overview.overview import overview
    from unmask.spec import PooledVector

    head = loaded.checkpoint.head
    pooling = head.pooling if isinstance(head, PooledVector) else ("mean",)
    with progress("steps", 1) as report:
        result = overview(
            view,
            target=Embedding(pooling),
            encoder=partial(loaded.trainable_encoder, replace=False),
            watch=lambda _, done, of: report(done, of),
        )
    if json:
        print_json(result)
        return
    screen = console()
    screen.print(f"[bold]{loaded.name}[/bold], {loaded.layer_count} layers; {len(view)} tokens\n")
    for finding in result.findings:
        for line in wrap(finding.sentence, WIDTH, initial_indent="- ", subsequent_indent="  "):
            screen.print(safe(line), highlight=False, soft_wrap=True)


def show_patterns(view: "AttentionView", loaded: "Model", layer: int | None, *, json: bool) -> None:
    """Print the scores of every head, or of those of one layer."""
    from unmask.interpret.attention.patterns import CLEAR, DISTANT, SHAPES, head_patterns

    layers = tuple(range(view.layer_count)) if layer is None else (layer,)
    with progress("steps", 1) as report:
        measured = head_patterns(
            view.cache, view.open_statistics(), layers=layers, watch=lambda _, done, of: report(done, of)
        )
    heads = tuple(
        PatternsOfHead(number, head, measured.named(number, head)[0], measured.of(number, head))
        for number in layers
        for head in range(view.cache.heads(number))
    )
    result = Patterns(loaded.name, loaded.revision, len(view), measured.segments, heads)
    if json:
        print_json(result)
        return
    screen = console()
    kind = "texts" if view.encoding.pair is not None else "sentences"
    screen.print(f"[bold]{safe(result.model)}[/bold]; {result.tokens} tokens, {result.segments} {kind}\n")
    grid = table(None, "head", "pattern", *SHAPES, right=SHAPES)
    for each in result.heads:
        scores = ("-" if score is None else f"{score:.2f}" for score in each.scores.values())
        grid.add_row(f"{each.layer}.{each.head}", each.pattern, *scores)
    screen.print(grid)
    print_legend(PATTERNS_LEGEND.format(clear=CLEAR, distant=DISTANT))
