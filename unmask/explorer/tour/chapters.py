"""The guided tour: each chapter runs experiments on the text of the reader and names the encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from unmask.base.arguments import one_of
from unmask.errors import InvalidRequest
from unmask.explorer.experiments import handshake, positions, prediction, reach, sinks, tiles, values
from unmask.explorer.experiments.recorded_text import RecordedText, record_text
from unmask.explorer.tour.models import (
    MINI,
    READ_TOKENS,
    Chosen,
    alibi,
    alternating,
    always,
    choose,
    choose_model,
    disentangled,
    followed_by_features,
    learned,
    pools_mean,
    predicts,
    rotary,
    softmax,
    trainable,
)
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.words.words import words as grouped
from unmask.models.load import Model
from unmask.spec import Rotary, SoftmaxAttention
from unmask.text import Encoding
from unmask.text.tokenizer import spellings

DIGITS = 5
"""Significant digits of the numbers that are sent."""
TILE, SMALL_TILE, SHORT_TEXT = 8, 4, 32
"""Side of a tile, and of those of a short text, so that there are several to step through."""
EMBEDDER = "default"
SWAPPED = "The dog bit the man."
PASSAGES = (
    "She could not open the house and sat on the steps outside.",
    "The river rose after the storm and flooded the fields.",
    "The key signature of a piece of music names its sharps and flats.",
)
"""The passages that the chapter on search compares with the text of the reader."""
POSITION_VARIANTS = (
    ("learned", learned, "variant/learned"),
    ("disentangled", disentangled, "variant/disentangled"),
    ("alibi", alibi, "variant/alibi"),
    ("rotary", rotary, MINI),
)


@dataclass(frozen=True)
class TourQuery:
    """The reader's choices; None leaves a choice to the experiment."""

    layer: int | None = None
    head: int | None = None
    token: int | None = None


Experiment = dict[str, Any]
Run = Callable[[Sequence[Model], str, TourQuery], list[Experiment]]


COMPARED_MODELS = 3
"""Loaded models whose states are compared by depth."""


def _experiment(name: str, chosen: Chosen, encoding: Encoding, **measurements: Any) -> Experiment:
    """One experiment: its name, its model and tokens, and its measurements."""
    model = chosen.model
    return {
        "id": name,
        "model": {
            "name": model.name,
            "shipped": chosen.shipped,
            "layers": model.layer_count,
            "heads": model.head_count,
            "width": model.width,
        },
        "tokens": [encoding.surface(token) or encoding.pieces[token] for token in range(len(encoding))],
        "special": encoding.special.tolist(),
        "total_tokens": encoding.original_tokens,
        **{key: plain(value) for key, value in measurements.items()},
    }


def plain(value: Any) -> Any:
    """A measured value for JSON: arrays as lists, numbers with `DIGITS` significant digits.

    Raises:
        InvalidRequest: a number is not finite.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in asdict(value).items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        if not np.isfinite(value):
            raise InvalidRequest(
                "a number of this experiment is not finite; try another text or another model"
            )
        return float(f"{value:.{DIGITS}g}")
    return value


def _head(recorded: RecordedText, choices: TourQuery, layers: Sequence[int] | None = None) -> tuple[int, int]:
    """The requested head, or one with a clear pattern, from all layers or the given ones."""
    if choices.layer is not None:
        return choices.layer, choices.head or 0
    return handshake.clearest_head(recorded, layers)


def _token(encoding: Encoding, choices: TourQuery) -> int:
    """The observed token, or a content word; tokenizers differ in how many tokens there are, so the last is
    the limit."""
    return min(
        len(encoding) - 1, handshake.content_token(encoding) if choices.token is None else choices.token
    )


def _pair(recorded: RecordedText, choices: TourQuery) -> handshake.Pair:
    """A pair of words that means something, in the requested head if there is one."""
    if choices.layer is None:
        return handshake.clearest_pair(recorded)
    one_of("head", choices.head or 0, recorded.mixer(choices.layer).heads, f"layer {choices.layer} has heads")
    return handshake.clearest_pair(recorded, choices.layer, choices.head or 0)


def _recorded(models: Sequence[Model], text: str) -> tuple[Chosen, Encoding, RecordedText]:
    """An encoder with softmax attention, the text as it reads it, and the activations of the text."""
    chosen = choose(models, softmax, MINI)
    encoding = chosen.read(text)
    return chosen, encoding, record_text(chosen.model.encoder, encoding)


def _handshake(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """One head, from products to attention weights."""
    chosen, encoding, recorded = _recorded(models, text)
    pair = _pair(recorded, choices)
    numbers = handshake.handshake(recorded, pair.layer, pair.head)
    return [_experiment("handshake", chosen, encoding, handshake=numbers, pair=pair)]


def _values(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """The same head and query: values, their sum, and what the layer adds to the residual stream."""
    chosen, encoding, recorded = _recorded(models, text)
    pair = _pair(recorded, choices)
    query = pair.query if choices.token is None else _token(encoding, choices)
    numbers = values.values(recorded, pair.layer, pair.head, query)
    return [_experiment("values", chosen, encoding, values=numbers)]


def _scaling(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Variance and entropy for random vectors and for a trained encoder."""
    chosen, encoding, recorded = _recorded(models, text)
    trained = handshake.trained_products(recorded)
    return [_experiment("scaling", chosen, encoding, random=handshake.random_products(), trained=trained)]


def _order(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Two words of a sentence swapped, and the reader's text shuffled, without and with positions."""
    experiments = []
    for name, chosen in (
        ("without", choose(models, positions.is_unordered, "variant/unordered")),
        ("with", choose(models, lambda spec: not positions.is_unordered(spec), MINI)),
    ):
        encoding = chosen.read(text)
        shuffled = positions.shuffled(chosen.model.encoder, encoding)
        of_token, swap = grouped(encoding).of_token, _swap(chosen)
        experiments.append(_experiment(name, chosen, encoding, shuffled=shuffled, words=of_token, swap=swap))
    return experiments


def _swap(chosen: Chosen) -> dict[str, Any]:
    """`SWAPPED` with its two nouns exchanged: the relative change of the state of each word."""
    encoding = chosen.read(SWAPPED)
    of = grouped(encoding)
    names = [of.surface(word).strip() for word in range(len(of))]
    swapped = positions.swapped(chosen.model.encoder, encoding, names.index("dog"), names.index("man"))
    spoken = [word for word in range(len(of)) if not of.special[word]]
    change = [float(swapped.final[of.of_token == word].mean()) for word in spoken]
    return {"names": [names[word] for word in spoken], "change": change}


def _positions(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Four position encodings, each with a text repeated twice."""
    experiments = []
    for name, has, shipped in POSITION_VARIANTS:
        chosen = choose(models, has, shipped)
        encoding, encoder = chosen.read(text), chosen.model.encoder
        measurements: dict[str, Any] = {}
        if name == "learned":
            measurements["table"] = positions.position_table(encoder)
        elif name == "rotary":
            mixer = encoder.spec.layers[0].mixer
            assert isinstance(mixer, SoftmaxAttention)
            assert isinstance(mixer.position, Rotary)
            measurements["turned"] = positions.turned_alike(mixer.position, mixer.head_width)
        else:
            recorded = record_text(encoder, encoding)
            if name == "alibi":
                measurements["penalty"] = positions.distance_penalty(recorded)
            else:
                measurements["parts"] = positions.parts(recorded, *_within(recorded, choices))
        measurements["twice"] = positions.twice(encoder, _halved(chosen, text))
        experiments.append(_experiment(name, chosen, encoding, **measurements))
    return experiments


def _within(recorded: RecordedText, choices: TourQuery) -> tuple[int, int]:
    """The requested head, if this encoder has it; the chapter shows several encoders."""
    layer, head = _head(recorded, choices)
    there = layer < recorded.layer_count and head < recorded.queries[layer].shape[1]
    return (layer, head) if there else handshake.clearest_head(recorded)


def _halved(chosen: Chosen, text: str) -> Encoding:
    """The beginning of a text that fits twice into the maximum length."""
    limit = min(READ_TOKENS, (chosen.model.max_tokens or 2 * READ_TOKENS) // 2)
    return chosen.model.tokenizer.encode(text, max_tokens=limit, truncation="end")


def _reach(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Receptive and effective fields of a token: with windows, with a global token, and in a loaded
    encoder."""
    experiments = []
    shipped = always("variant/windows")
    for name, chosen, marked in (
        ("windows", shipped, ()),
        ("globals", shipped, (0,)),
        ("loaded", choose(models, lambda spec: True, MINI), ()),
    ):
        encoding = chosen.read(text)
        tokenizer = chosen.model.tokenizer
        mask = tokenizer.special_tokens.get("mask")
        replacement = None if mask is None else tokenizer.token_to_id(mask)
        target = _token(encoding, choices)
        effect = reach.reach_and_effect(
            chosen.model.encoder, encoding, target, 0 if replacement is None else replacement, marked
        )
        experiments.append(_experiment(name, chosen, encoding, reach=effect))
    return experiments


def _blur(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Feature maps in place of the softmax, and two small encoders that differ only in this."""
    chosen = choose(
        models,
        lambda spec: softmax(spec) and bool(followed_by_features(spec, READ_TOKENS)),
        MINI,
    )
    encoding = chosen.read(text)
    recorded = record_text(chosen.model.encoder, encoding)
    layers = followed_by_features(chosen.model.spec, len(encoding))
    blurred = _experiment(
        "features", chosen, encoding, blur=tiles.blur(recorded, *_head(recorded, choices, layers))
    )
    pair = {}
    for name in ("variant/linear", "variant/learned"):
        trained = always(name)
        pair[name] = tiles.evenness(record_text(trained.model.encoder, trained.read(text)))
    linear = always("variant/linear")
    return [blurred, _experiment("trained", linear, linear.read(text), evenness=pair)]


def _tiles(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """One head computed in tiles."""
    chosen, encoding, recorded = _recorded(models, text)
    layer, head = _head(recorded, choices)
    query = _token(encoding, choices)
    tiled = tiles.tiled(
        recorded, layer, head, query, tile=SMALL_TILE if len(encoding) <= SHORT_TEXT else TILE
    )
    shares = recorded.probabilities(layer)[head].numpy()
    return [_experiment("tiles", chosen, encoding, tiled=tiled, shares=shares)]


def _layers(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """Local and global layers of two encoders."""
    experiments = []
    for name, chosen in (
        ("small", always("variant/local-global")),
        ("large", choose(models, alternating, MINI)),
    ):
        encoding = chosen.read(text)
        recorded = record_text(chosen.model.encoder, encoding)
        experiments.append(_experiment(name, chosen, encoding, alternation=reach.alternation(recorded)))
    return experiments


def _sinks(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """The strongest sink, and the text without it."""
    chosen, encoding, recorded = _recorded(models, text)
    numbers = sinks.sinks(recorded)
    return [_experiment("sinks", chosen, encoding, sinks=numbers)]


def _collapse(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """The similarity of a text's states by depth, in the model looked at and in others that are loaded."""
    first = choose(models, softmax, MINI)
    others = [Chosen(model, False) for model in dict.fromkeys(models) if softmax(model.spec)]
    compared = [first, *(other for other in others if other.model is not first.model)][:COMPARED_MODELS]
    experiments = []
    for number, chosen in enumerate(compared):
        encoding = chosen.read(text)
        numbers = values.collapse(record_text(chosen.model.encoder, encoding))
        name = f"collapse {number}" if number else "collapse"
        experiments.append(_experiment(name, chosen, encoding, collapse=numbers))
    return experiments


def _prediction(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """The tokens that the prediction of a masked word depends on."""
    chosen = choose_model(models, predicts, MINI)
    encoding, model = chosen.read(text), chosen.model
    mask_id = model.tokenizer.mask_id
    assert mask_id is not None
    token = None if choices.token is None else _token(encoding, choices)
    numbers = prediction.masked_prediction(model.encoder, encoding, mask_id, token, plain=trainable(model))
    words = [spellings(model.tokenizer, int(id))[1].strip() for id in numbers.top_ids]
    return [_experiment("prediction", chosen, encoding, prediction=numbers, top_words=words)]


def _search(models: Sequence[Model], text: str, choices: TourQuery) -> list[Experiment]:
    """The similarity of the reader's text to three passages, and what every token adds to it."""
    chosen = choose_model(models, pools_mean, EMBEDDER)
    encoding, encoder = chosen.read(text), chosen.model.encoder
    query = ActivationCache.of(encoder, encoding)
    passages = []
    for passage in PASSAGES:
        tokenized = chosen.read(passage)
        matched = prediction.matching(query, ActivationCache.of(encoder, tokenized))
        tokens = [tokenized.surface(token) or tokenized.pieces[token] for token in range(len(tokenized))]
        passages.append(
            {"text": passage, "tokens": tokens, "special": tokenized.special.tolist(), **plain(matched)}
        )
    return [_experiment("search", chosen, encoding, passages=passages)]


DEFAULT_TEXT = "The woman lost her keys in the garden, so she waited by the door until her brother came home."
MOST_CHARACTERS = 4000


@dataclass(frozen=True)
class Chapter:
    """A chapter in the table of contents."""

    id: str
    title: str
    order: int
    needs: str
    """The mechanism that its encoder must have."""
    choices: tuple[str, ...]
    """Parameters in addition to the text: ``layer``, ``head``, ``token``."""


def chapters() -> tuple[Chapter, ...]:
    """All chapters in order."""
    return CHAPTERS


def run(
    chapter: str,
    models: Sequence[Model],
    text: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    token: int | None = None,
) -> dict[str, Any]:
    """Run the experiments of a chapter on a text; return plain values for JSON.

    Args:
        chapter: the id of the chapter.
        models: the loaded models, in order of preference. If none has the mechanism, a small encoder from the
            package is used, and the result says so.
        text: the reader's text; an empty one is replaced by a default sentence, a long one is truncated.
        layer: layer of the head, for chapters that show one head; None chooses a head with a clear pattern.
        head: the head in that layer.
        token: the chosen token; None for a content word near the middle.

    Raises:
        InvalidRequest: there is no such chapter, layer, head or token, or the text is too long.
        TextError: the text cannot be read.
    """
    if chapter not in _RUNS:
        raise InvalidRequest(f"there is no chapter {chapter!r}; there are {', '.join(_RUNS)}")
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"the text has {len(text):,} characters and the tour reads at most {MOST_CHARACTERS:,}; "
            "shorten it"
        )
    words = text if text.strip() else DEFAULT_TEXT
    experiments = _RUNS[chapter](models, words, TourQuery(layer, head, token))
    return {"chapter": chapter, "text": words, "experiments": experiments}


_HEAD = ("layer", "head")
_TABLE: tuple[tuple[str, str, str, tuple[str, ...], Run], ...] = (
    ("handshake", "Queries and keys", "softmax attention", _HEAD, _handshake),
    ("values", "Values and the residual stream", "softmax attention", (*_HEAD, "token"), _values),
    ("scaling", "Why scores are scaled", "softmax attention", (), _scaling),
    ("order", "Attention without positions", "no positions", (), _order),
    ("positions", "Four position encodings", "positions of four kinds", _HEAD, _positions),
    ("reach", "Windows and global tokens", "windows", ("token",), _reach),
    ("blur", "What linear attention loses", "linear attention", _HEAD, _blur),
    ("tiles", "Tile by tile, the same numbers", "softmax attention", (*_HEAD, "token"), _tiles),
    ("layers", "Local and global layers", "windows in some layers", (), _layers),
    ("sinks", "Attention sinks", "softmax attention", (), _sinks),
    ("collapse", "Does the representation collapse?", "softmax attention", (), _collapse),
    ("prediction", "What a prediction rests on", "an MLM head", ("token",), _prediction),
    ("search", "Why a passage matches", "mean-pooled embeddings", (), _search),
)
CHAPTERS = tuple(
    Chapter(name, title, number, needs, choices)
    for number, (name, title, needs, choices, _) in enumerate(_TABLE, start=1)
)
_RUNS: dict[str, Run] = {name: experiment for name, _, _, _, experiment in _TABLE}
