"""``unmask watch``: what pretraining would hide of a text, and what the model makes of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.progress import counted
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TextArgument, how_many
from unmask.cli.output import console, print_json, print_legend, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.training.view.values import MaskedView, MaskEpochs, ReplacedView, SentencePairView

MASKED_LEGEND = """\
became     what the model reads instead of the word; kept: the word itself
loss       -log p of the word, in nats
frequency  the loss of a model that knows only how frequent words are (3,024 sentences of books)"""

MEANS = {
    "masked": ("loss", "frequency_loss", "accuracy"),
    "epochs": (),
    "replaced": ("loss", "constant_loss", "accuracy", "constant_accuracy"),
    "pairs": ("unrelated_probability",),
}
"""Figures of a view that the JSON has beside it."""

MOST_SHOWN = 60
"""Epochs of which the table shows the targets."""


def watch(
    text: TextArgument = None,
    second: Annotated[
        str | None, Parameter(help="a second text: does it follow the first? (next-sentence or order head)")
    ] = None,
    *,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    seed: Annotated[int, Parameter(help="determines the masks, together with the epoch")] = 0,
    epoch: Annotated[int, Parameter(help="the pass over the text, from 1; each draws another mask")] = 1,
    epochs: Annotated[
        int | None, Parameter(help="show the targets of so many epochs, with static and dynamic masks")
    ] = None,
    static_masks: Annotated[int, Parameter(help="with --epochs: fixed masks of the text")] = 10,
    rate: Annotated[float, Parameter(help="share of tokens that is selected")] = 0.15,
    mask_unit: Annotated[
        Literal["token", "word", "ngram"], Parameter(help="what is masked together")
    ] = "token",
    mask_with: Annotated[
        Literal["bert", "mask", "electra"] | None,
        Parameter(help="bert: 80 % mask, 10 % random, 10 % kept; mask: all; electra: 85 % mask, rest kept"),
    ] = None,
    replacement: Annotated[
        str | None, Parameter(help="the text with words replaced, for a detector (ELECTRA, DeBERTa v3)")
    ] = None,
    generator: Annotated[
        Path | None, Parameter(help="a checkpoint folder that samples replacements, for a detector")
    ] = None,
    top: Annotated[int, how_many("number of predictions per target")] = 3,
    json: JsonOption = False,
) -> None:
    """Watch a step of pretraining on a text: corrupted tokens, targets and the loss of each.

    A model with a head for masked words shows which tokens it reads changed and what it predicts. A detector
    of replaced tokens gives every token the probability that it was replaced: of the text itself, of
    --replacement, or of words that --generator samples. With a second text, a next-sentence or
    sentence-order head says whether it follows the first. With --epochs, static masks are shown beside
    dynamic ones.
    """
    text = read_text(text)
    views = {
        "a second text": second is not None,
        "--epochs": epochs is not None,
        "--replacement": replacement is not None,
        "--generator": generator is not None,
    }
    asked_for = [name for name, chosen in views.items() if chosen]
    if len(asked_for) > 1:
        raise InvalidRequest(f"{' and '.join(asked_for)} are different views; give one of them")
    loaded = run.load(model)
    heads = {getattr(head, "role", None) for head in loaded.spec.heads}
    masking: dict[str, object] = {"rate": rate, "mask_unit": mask_unit}
    detects = replacement is not None or generator is not None or heads == {"replaced"}
    masking["replacement"] = mask_with or ("electra" if detects else "bert")
    if second is not None:
        _show(loaded, loaded.sentence_pair_view(text, second), json)
    elif epochs is not None:
        options = {"epochs": epochs, "static_masks": static_masks}
        _show(loaded, loaded.mask_epochs(text, **options, seed=seed, masking=masking), json)
    elif detects:
        view = loaded.replaced_view(
            text, replacement, generator=generator, seed=seed, epoch=epoch, masking=masking
        )
        _show(loaded, view, json)
    else:
        words = loaded.spec.embedding.vocabulary
        if not 1 <= top <= words:
            raise InvalidRequest(f"--top is {top}; it can be 1 to {words}")
        _show(loaded, loaded.masked_view(text, seed=seed, epoch=epoch, masking=masking, top_k=top), json)


def _show(
    loaded: "Model", view: "MaskedView | MaskEpochs | ReplacedView | SentencePairView", json: bool
) -> None:
    from unmask.training.view.values import MaskedView, MaskEpochs, ReplacedView

    if json:
        kind = {MaskedView: "masked", MaskEpochs: "epochs", ReplacedView: "replaced"}.get(type(view), "pairs")
        means = {name: getattr(view, name) for name in MEANS[kind]}
        facts = {"model": loaded.name, "revision": loaded.revision, "view": kind}
        print_json({**facts, **means, kind: view})
    elif isinstance(view, MaskedView):
        _show_masked(view)
    elif isinstance(view, MaskEpochs):
        _show_epochs(view)
    elif isinstance(view, ReplacedView):
        _show_replaced(view)
    else:
        _show_pairs(view)


def _show_masked(view: "MaskedView") -> None:
    console().print(safe(" ".join(token.corrupted_piece for token in view.tokens)))
    grid = table(
        None,
        *("token", "word", "became", "loss", "frequency", "p", "rank", "predictions"),
        right=("token", "loss", "frequency", "p", "rank"),
    )
    for target in view.targets:
        became = "kept" if target.corruption == "kept" else target.corrupted_piece
        guesses = " ".join(f"{guess.piece} {guess.probability:.2f}" for guess in target.predictions or ())
        numbers = (
            f"{target.loss:.2f}",
            f"{target.frequency_loss:.2f}",
            f"{target.probability:.4f}",
            str(target.rank),
        )
        grid.add_row(str(target.token), safe(target.piece), safe(became), *numbers, safe(guesses))
    console().print(grid)
    console().print(
        f"Mean loss {view.loss:.2f} nats over {counted(len(view.targets), 'target')} of "
        f"{counted(len(view.tokens), 'token')}; by "
        f"word frequency alone {view.frequency_loss:.2f}, knowing nothing {view.uniform_loss:.2f}. "
        f"Seed {view.seed}, epoch {view.epoch}."
    )
    print_legend(MASKED_LEGEND)


def _show_epochs(view: "MaskEpochs") -> None:
    for row in (view.static, view.dynamic):
        grid = table(f"{row.kind} masks", "epoch", "predicted so far", "targets", right=("epoch",))
        for number, (targets, ever) in enumerate(zip(row.epochs, row.ever, strict=True), 1):
            if number > MOST_SHOWN:
                break
            first = view.first_token
            words = " ".join(f"{token}:{view.pieces[token - first]}" for token in targets)
            grid.add_row(str(number), f"{100 * ever:.0f} %", safe(words))
        console().print(grid)
    count = len(view.expected)
    console().print(
        f"After {count} epochs: {100 * view.static.ever[-1]:.0f} % of the tokens were predicted with "
        f"{view.static_masks} static masks ({view.static.different} different ones drawn), "
        f"{100 * view.dynamic.ever[-1]:.0f} % with dynamic masks ({view.dynamic.different} different); "
        f"{100 * view.expected[-1]:.0f} % is expected of independent masks."
    )


def _show_replaced(view: "ReplacedView") -> None:
    grid = table(
        None, "token", "read", "original", "p(replaced)", "loss", right=("token", "p(replaced)", "loss")
    )
    for token in view.tokens:
        original = "" if not token.target else token.piece if token.replaced else "sampled right"
        numbers = (f"{token.probability:.4f}", f"{token.loss:.3f}")
        grid.add_row(str(token.token), safe(token.corrupted_piece), safe(original), *numbers)
    console().print(grid)
    console().print(
        f"Replaced by: {view.source}. Mean loss {view.loss:.3f} nats, {100 * view.accuracy:.0f} % right; one "
        f"answer for all tokens has {view.constant_loss:.3f} nats and "
        f"{100 * view.constant_accuracy:.0f} %."
    )


def _show_pairs(view: "SentencePairView") -> None:
    grid = table(None, "order", "p(second follows first)", right=("p(second follows first)",))
    grid.add_row("as given", f"{view.given.probability:.4f}")
    grid.add_row("swapped", f"{view.swapped.probability:.4f}")
    others = [pair.probability for pair in view.unrelated]
    grid.add_row(
        f"first, then an unrelated sentence (mean of {len(others)})", f"{sum(others) / len(others):.4f}"
    )
    console().print(grid)
    console().print(
        f"Head: {view.task}; chance in training {view.chance:g}. Unrelated sentences: {min(others):.4f} to "
        f"{max(others):.4f}."
    )
