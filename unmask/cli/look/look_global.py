"""``unmask look TEXT --global-words ...``: what other global tokens change."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.look.look_against import MOST_HEADS
from unmask.cli.output import console, print_json, safe, table

if TYPE_CHECKING:
    from unmask.interpret.attention.global_effect import GlobalEffect
    from unmask.models.load import Model
    from unmask.text import Encoding

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

LEGEND = """\
cosine of states   between a word's last state before and after
received           attention to the tokens that became global, mean over queries
moved              share of a word's attention that goes to other words than before"""


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


def look_global(
    loaded: "Model", encoding: "Encoding", words: list[str], sentences: list[int], *, json: bool
) -> None:
    """Make tokens global besides those that the head was trained with, and print what changed."""
    from unmask.interpret.attention.global_effect import GlobalText, global_effect
    from unmask.spec import PooledVector
    from unmask.spec.global_tokens import trained_global_tokens

    trained = trained_global_tokens(loaded.spec, paired=encoding.pair is not None)
    choice = GlobalText(tuple(words), tuple(sentences), beside=trained)
    head = loaded.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None
    effect = global_effect(loaded.encoder, encoding, choice, head=pooled)
    found = LookGlobal(
        model=loaded.name,
        revision=loaded.revision,
        before=effect.before,
        after=effect.after,
        embedding_cosine=effect.states.embedding_cosine,
        logits=tuple(
            LookGlobalLogits(role, tuple(before.tolist()), tuple(after.tolist()))
            for role, (before, after) in effect.logits.items()
        ),
        words=_words(effect),
        heads=_heads(effect),
    )
    if json:
        print_json(found)
    else:
        _show(found, [encoding.surface(token) for token in effect.added])


def _words(effect: "GlobalEffect") -> tuple[LookGlobalWord, ...]:
    words = effect.states.before
    added = {int(words.of_token[token]) for token in effect.added}
    return tuple(
        LookGlobalWord(words.surface(word).strip(), word in added, float(cosine))
        for word, cosine in enumerate(effect.states.state_cosine[-1])
    )


def _heads(effect: "GlobalEffect") -> tuple[LookGlobalHead, ...]:
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
    return tuple(sorted(every, key=lambda one: (-one.moved, one.layer, one.head)))


def _show(found: LookGlobal, added: list[str]) -> None:
    screen = console()
    screen.print(
        f"[bold]{found.model}[/bold]; {len(found.before)} global tokens as trained, {len(found.after)} now; "
        f"new: {safe(' '.join(added))}"
    )
    screen.print(f"cosine of the embeddings {found.embedding_cosine:.4f}")
    for one in found.logits:
        before, after = (" ".join(f"{x:.3f}" for x in side) for side in (one.before, one.after))
        screen.print(f"logits of the {one.role} head: {before} before, {after} after")
    words = table(None, "word", "global", "cosine of states", right=("cosine of states",))
    for word in found.words:
        words.add_row(safe(word.text), "new" if word.became_global else "", f"{word.state_cosine:.4f}")
    screen.print(words)
    numbers = ("received before", "received after", "moved")
    heads = table(None, "head", *numbers, right=numbers)
    for head in found.heads[:MOST_HEADS]:
        heads.add_row(
            f"{head.layer}.{head.head}",
            f"{head.received_before:.3f}",
            f"{head.received_after:.3f}",
            f"{head.moved:.1%}",
        )
    screen.print(heads)
    screen.print(f"\n[dim]{LEGEND}[/dim]")
