"""``unmask attribute`` and ``unmask patch``: where a prediction comes from, in one text and between two."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.optional import require
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TextArgument
from unmask.cli.output import console, present, print_legend, progress, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unmask.interpret.activation_cache import ActivationCache
    from unmask.interpret.effects.attribution import Attribution, Completeness
    from unmask.interpret.effects.patching import Patching
    from unmask.interpret.effects.target import AttributionTarget
    from unmask.models.load import Model

Method = Literal["chefer", "attention_x_gradient", "input_x_gradient", "integrated_gradients"]
"""`unmask.interpret.effects.attribution.Method`, which is not imported before a model is loaded."""

Part = Literal["residual", "attention_output", "feedforward_output", "head_output"]
"""`unmask.interpret.effects.patching.Part`."""

WordOption = Annotated[
    str | None, Parameter(help="the predicted word at the mask token of the text; default: the likeliest")
]
LabelOption = Annotated[
    str | None, Parameter(help="the class of a classifier of texts; default: the predicted one")
]
ScaleOption = Annotated[
    Literal["logit", "log-probability"], Parameter(help="of a word: its logit or its log-probability")
]

COMPLETE = """\
The values add up to {sum:.4g}; the {unit} is {at_text:.4g} on the text and {at_baseline:.4g} on the baseline
({baseline}), a difference of {difference:.4g}: the gap of {gap:.2g} is the error of {steps} steps."""

PATCH_LEGEND = """\
0: the patch changes nothing; 1: it brings back the {unit} of the clean text,
{clean:.4g} instead of {corrupted:.4g}. {rows}"""

ROWS = {
    "residual": "emb. is the input of the first layer, a number the output of that layer.",
    "attention_output": "What the attention of a layer adds to the token.",
    "feedforward_output": "What the feed-forward network of a layer adds to the token.",
    "head_output": "What one head mixed, at all tokens: a row is a layer, a column a head.",
}


@dataclass(frozen=True)
class AttributedToken:
    """A token and the share of the target that it is given."""

    surface: str
    special: bool
    value: float


@dataclass(frozen=True)
class AttributeResult:
    """Everything ``unmask attribute`` shows."""

    model: str
    revision: str | None
    method: str
    target: str
    unit: str
    tokens: tuple[AttributedToken, ...]
    completeness: "Completeness | None"
    """Of integrated gradients."""


@dataclass(frozen=True)
class PatchResult:
    """Everything ``unmask patch`` shows; see `unmask.interpret.effects.patching.Patching`."""

    model: str
    revision: str | None
    part: str
    target: str
    unit: str
    clean: float
    corrupted: float
    tokens: tuple[tuple[str, str], ...]
    """Each token in the clean and in the corrupted text."""
    values: tuple[tuple[float | None, ...], ...]
    effect: tuple[tuple[float | None, ...], ...]


def attribute(
    text: TextArgument = None,
    pair: Annotated[str | None, Parameter(help="a second text, for models that read pairs")] = None,
    *,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    method: Annotated[Method, Parameter(help="how the target is distributed")] = "integrated_gradients",
    word: WordOption = None,
    label: LabelOption = None,
    scale: ScaleOption = "logit",
    baseline: Annotated[
        Literal["mask", "pad", "zero"], Parameter(help="what integrated gradients start from")
    ] = "mask",
    steps: Annotated[int, Parameter(help="points of the path of integrated gradients")] = 50,
    json: JsonOption = False,
) -> None:
    """Attribute a prediction to the tokens of a text: gradients, or attention weighted by gradients.

    The target is the word at the mask token of the text, a class of a classifier of texts, the score of a
    pair, or else the length of the text's embedding.
    """
    text = read_text(text)
    if steps < 1:
        raise InvalidRequest(f"--steps is {steps}; it must be at least 1")
    loaded = run.load(model)
    from unmask.interpret.effects.attribution import attribution, named_baseline

    cache = loaded.attention(text, pair).cache
    target, name = target_of(loaded, cache, word, label)
    start = named_baseline(baseline, loaded.tokenizer) if method == "integrated_gradients" else "zero"
    with progress("layers", 1) as report:
        found = attribution(
            cache,
            target,
            method=method,
            encoder=loaded.trainable_encoder(replace=False),
            scale=scale,
            baseline=start,
            steps=steps,
            watch=lambda _, done, of: report(done, of),
        )
    result = AttributeResult(
        model=loaded.name,
        revision=loaded.revision,
        method=method,
        target=name,
        unit=found.unit,
        tokens=_attributed(cache, found),
        completeness=found.completeness,
    )
    present(result, lambda result: _show_attributed(result, baseline), json=json)


def _attributed(cache: "ActivationCache", found: "Attribution") -> tuple[AttributedToken, ...]:
    encoding = cache.encoding
    return tuple(
        AttributedToken(encoding.surface(at) or encoding.pieces[at], bool(encoding.special[at]), float(value))
        for at, value in enumerate(found.values)
    )


def _show_attributed(result: AttributeResult, baseline: str) -> None:
    screen = console()
    screen.print(f"[bold]{safe(result.model)}[/bold]: {safe(result.target)}, its {result.unit}")
    grid = table(None, "token", result.method, right=(result.method,))
    for token in result.tokens:
        surface = f"[dim]{safe(token.surface)}[/dim]" if token.special else safe(token.surface)
        grid.add_row(surface, f"{token.value:+.4f}")
    screen.print(grid)
    path = result.completeness
    if path is not None:
        print_legend(
            COMPLETE.format(
                sum=sum(token.value for token in result.tokens),
                unit=result.unit,
                at_text=path.at_text,
                at_baseline=path.at_baseline,
                baseline=baseline,
                difference=path.at_text - path.at_baseline,
                gap=path.gap,
                steps=path.steps,
            )
        )


def patch(
    clean: Annotated[str, Parameter(help="the text whose states are taken")],
    corrupted: Annotated[str, Parameter(help="the same text with a word replaced, of as many tokens")],
    *,
    pair: Annotated[str | None, Parameter(help="the second text of both, for models that read pairs")] = None,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    part: Annotated[Part, Parameter(help="what is replaced")] = "residual",
    word: WordOption = None,
    label: LabelOption = None,
    scale: ScaleOption = "logit",
    picture: Annotated[
        Path | None, Parameter(help="write the effects as a figure, .svg, .pdf or .png")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Patch activations between two texts: which state of the first brings its prediction back in the second.

    Each number is one run of the corrupted text with one state of the clean text. The target is as in
    `unmask attribute`; an embedding is compared with that of the clean text.
    """
    if picture is not None:
        from unmask.interpret.figures.paper import check_format

        check_format(picture)
        check_can_write(picture)
        require("figures")
    loaded = run.load(model)
    from unmask.interpret.effects.patching import patch_activations

    first, second = (loaded.attention(text, pair).cache for text in (clean, corrupted))
    target, name = target_of(loaded, first, word, label)
    with progress("runs", 1) as report:
        found = patch_activations(
            first, second, target, part=part, scale=scale, watch=lambda _, done, of: report(done, of)
        )
    names = [
        tuple(cache.encoding.surface(at) or cache.encoding.pieces[at] for at in range(len(cache)))
        for cache in (first, second)
    ]
    result = PatchResult(
        model=loaded.name,
        revision=loaded.revision,
        part=part,
        target=name,
        unit=found.unit,
        clean=found.clean,
        corrupted=found.corrupted,
        tokens=tuple(zip(*names, strict=True)),
        values=_plain(found.values),
        effect=_plain(found.effect),
    )
    if picture is not None:
        _draw(result, found, picture)
    present(result, _show_patched, json=json)


def _plain(values: "NDArray[np.float64]") -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if math.isnan(x) else x for x in row) for row in values.tolist())


def _tokens(result: PatchResult) -> list[str]:
    """Each token; where the texts differ, what it was."""
    return [clean if clean == other else f"{clean} | {other}" for clean, other in result.tokens]


def _levels(result: PatchResult) -> list[str]:
    count = len(result.effect)
    return (
        ["emb.", *map(str, range(count - 1))] if result.part == "residual" else list(map(str, range(count)))
    )


def _show_patched(result: PatchResult) -> None:
    screen = console()
    screen.print(f"[bold]{safe(result.model)}[/bold]: {safe(result.target)}, its {result.unit}")
    levels = _levels(result)
    if result.part == "head_output":
        columns = tuple(map(str, range(len(result.effect[0]))))
        grid = table(None, "layer", *columns, right=columns)
        for level, row in zip(levels, result.effect, strict=True):
            grid.add_row(level, *map(_number, row))
    else:
        grid = table(None, "token", *levels, right=tuple(levels))
        for at, token in enumerate(_tokens(result)):
            grid.add_row(safe(token), *(_number(row[at]) for row in result.effect))
    screen.print(grid)
    print_legend(
        PATCH_LEGEND.format(
            unit=result.unit, clean=result.clean, corrupted=result.corrupted, rows=ROWS[result.part]
        )
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _draw(result: PatchResult, found: "Patching", path: Path) -> None:
    from unmask.interpret.figures.attention import grid_figure
    from unmask.interpret.figures.paper import save_figure

    label = f"effect on the {result.unit}"
    if result.part == "head_output":
        heads = list(map(str, range(found.effect.shape[1])))
        figure = grid_figure(found.effect, _levels(result), heads, ("layer", "head"), label)
    else:
        figure = grid_figure(found.effect.T, _tokens(result), _levels(result), ("token", "layer"), label)
    save_figure(figure, path)


def target_of(
    loaded: "Model",
    cache: "ActivationCache",
    word: str | None,
    label: str | None,
    *,
    compared: bool = False,
) -> "tuple[AttributionTarget, str]":
    """What is explained, and in words. With ``compared``, an embedding is compared with itself as it is.

    Raises:
        InvalidRequest: a word or a label was named that the model cannot predict here.
    """
    import numpy as np

    from unmask.interpret.effects.target import Class, Embedding, TargetScore
    from unmask.spec import Classifier, PooledVector
    from unmask.spec.heads import is_per_token

    if word is not None and label is not None:
        raise InvalidRequest(f"--word {word} and --label {label} are two targets; leave one out")
    masks = np.flatnonzero(cache.encoding.ids == loaded.tokenizer.mask_id)
    classifier = next((head for head in loaded.spec.heads if isinstance(head, Classifier)), None)
    of_texts = classifier is not None and not is_per_token(classifier)
    if label is None and (word is not None or (len(masks) and not of_texts)):
        return _word(loaded, cache, masks.tolist(), word)
    if label is None and not of_texts:
        head = loaded.checkpoint.head
        pooling = head.pooling if isinstance(head, PooledVector) else ("mean",)
        target = Embedding(pooling)
        if compared:
            before_E = TargetScore(cache, target).embedding()
            target = Embedding(pooling, toward=tuple(before_E.tolist()))
        return target, f"the text's embedding ({' and '.join(pooling)} of its tokens)"
    if classifier is None or not of_texts:
        raise InvalidRequest(f"{loaded.name} has no classifier of texts, so there is no label {label}")
    names = list(classifier.labels or map(str, range(classifier.classes)))
    if label is not None and label not in names:
        raise InvalidRequest(f"--label is {label!r}; {loaded.name} has the labels {', '.join(names)}")
    logits = cache.encoder.logits(classifier.role, cache.final_ND, cache.batch.layout)[0]
    index = int(logits.argmax()) if label is None else names.index(label)
    what = "the score" if classifier.classes == 1 else f"the class {names[index]}"
    return Class(classifier.role, index), what


def _word(
    loaded: "Model", cache: "ActivationCache", masks: list[int], word: str | None
) -> "tuple[AttributionTarget, str]":
    from unmask.interpret.effects.logit_lens import logit_lens
    from unmask.interpret.effects.target import Word
    from unmask.text.tokenizer import spellings

    tokenizer, encoding = loaded.tokenizer, cache.encoding
    mask = tokenizer.special_tokens.get("mask")
    if len(masks) != 1 or mask is None:
        raise InvalidRequest(
            f"the text has {len(masks)} mask tokens; write {mask or 'a mask token'} once, where the word is "
            "predicted"
        )
    (at,) = masks
    if word is None:
        id_ = int(logit_lens(cache, [at], top_k=1).ids[0, -1, 0])
    else:
        filled = tokenizer.encode(encoding.text.replace(mask, word, 1), encoding.pair)
        if len(filled) != len(encoding):
            raise InvalidRequest(
                f"--word {word} is {len(filled) - len(encoding) + 1} tokens of this tokenizer, and the model "
                "predicts one; name a word that is one token"
            )
        id_ = int(filled.ids[at])
    return Word(at, id_), f"the word “{spellings(tokenizer, id_)[1].strip()}” at token {at}"
