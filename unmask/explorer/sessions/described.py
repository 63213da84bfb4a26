"""Descriptions of models and texts for the page."""

import hashlib
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

import unmask
from unmask.explorer.sessions.models import AnyModel, ModelSlot, no_attention
from unmask.http.responses import Problem
from unmask.interpret.attention.layer_statistics import is_punctuation
from unmask.interpret.words.words import Words
from unmask.models.elmo import ElmoModel
from unmask.spec import (
    BlockSparse,
    CausalAttention,
    FullAttention,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    role_of,
)
from unmask.spec.global_tokens import (
    GlobalTokens,
    has_global_tokens,
    places,
    trained_global_tokens,
)
from unmask.text import Encoding

PACKAGES = ("torch", "numpy", "tokenizers")
CAN_FILL = ("masked", "enhanced")
"""Heads that predict words."""
NO_LAYER = "{} has no layer with attention; the views Tokens and Geometry still work"


@dataclass(frozen=True)
class ModelInfo:
    """One model of this explorer; sizes are 0 and lists empty until ``phase`` is ``ready``.

    ``phase``: waiting, loading, ready or failed (then ``problem`` says why). ``progress``: the share of a
    download that is there, 0 to 1, if there is one. ``heads`` and ``layer_kinds``
    have one entry a layer. ``maps``: whether there is any attention to draw; ``no_maps`` says why not.
    ``takes_labels``: whether it finds entities of labels that a reader names. ``has_global_tokens``: whether
    a reader can choose words whose tokens become global.
    """

    index: int
    name: str
    phase: str
    problem: Problem | None
    progress: float | None
    revision: str | None
    family: str
    dtype: str
    parameter_count: int
    layers: int
    heads: tuple[int, ...]
    width: int
    max_tokens: int | None
    layer_kinds: tuple[str, ...]
    can_fill: bool
    can_classify: bool
    takes_labels: bool
    maps: bool
    no_maps: str | None
    has_global_tokens: bool


@dataclass(frozen=True)
class Token:
    """One token; ``start`` and ``end`` count code points of its text, both 0 if ``special``.

    ``word`` is its place in `TextRead.words`, if it is of one. ``category``: special, punctuation, word (the
    first token of one) or piece (a later one).
    """

    id: int
    piece: str
    surface: str
    start: int
    end: int
    special: bool
    in_pair: bool
    word: int | None
    category: str


@dataclass(frozen=True)
class Word:
    """One word of the text: its characters, and its tokens ``first`` to ``stop``."""

    surface: str
    start: int
    end: int
    in_pair: bool
    first: int
    stop: int


@dataclass(frozen=True)
class TextRead:
    """One text as a model reads it. ``id`` names it in later requests; ``heads`` has one entry a layer.

    ``note`` says what a reader must know of it, such as that it is longer than any the model was trained on.
    ``global_spans``: ranges of characters whose tokens were chosen to be global; ``global_tokens``: all that
    are global.
    """

    id: str
    model: str
    model_index: int
    revision: str | None
    dtype: str
    text: str
    pair: str | None
    text_sha256: str
    layers: int
    heads: tuple[int, ...]
    total_tokens: int
    kept_tokens: int
    max_tokens: int | None
    note: str | None
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    global_spans: tuple[tuple[int, int], ...]
    global_tokens: tuple[int, ...]


def versions() -> dict[str, str]:
    """The packages that computed what is shown, and their versions."""
    numbers = {"unmask": unmask.__version__}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def model_info(place: ModelSlot) -> ModelInfo:
    """One model of the explorer, loaded or not."""
    model = place.model
    info = ModelInfo(
        index=place.index,
        name=place.name,
        phase=place.phase,
        problem=place.problem,
        progress=place.progress(),
        revision=model.revision if model else None,
        family="",
        dtype=model.dtype if model else "",
        parameter_count=model.parameter_count if model else 0,
        layers=0,
        heads=(),
        width=model.width if model else 0,
        max_tokens=None,
        layer_kinds=(),
        can_fill=False,
        can_classify=False,
        takes_labels=False,
        maps=False,
        no_maps=None,
        has_global_tokens=False,
    )
    if model is None:
        return info
    if isinstance(model, ElmoModel):
        layers = model.spec.layers
        kinds, why = ("bidirectional LSTM",) * layers, no_attention(place.name)
        return replace(
            info, family="ELMo", layers=layers, heads=_heads(model), layer_kinds=kinds, no_maps=why
        )
    mixers = [layer.mixer for layer in model.spec.layers]
    roles = [role_of(head) for head in model.spec.heads]
    return replace(
        info,
        family=model.checkpoint.family.name,
        layers=len(mixers),
        heads=_heads(model),
        max_tokens=model.max_tokens,
        layer_kinds=tuple(_kind(mixer) for mixer in mixers),
        can_fill=any(role in CAN_FILL for role in roles) and not model.spec.causal,
        can_classify=any(role not in CAN_FILL for role in roles),
        takes_labels=model.checkpoint.label_head is not None,
        maps=bool(mixers),
        no_maps=None if mixers else NO_LAYER.format(place.name),
        has_global_tokens=has_global_tokens(model.spec),
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def text_read(
    text_id: str,
    place: ModelSlot,
    model: AnyModel,
    grouped: Words,
    *,
    spans: tuple[tuple[int, int], ...] = (),
    global_tokens: GlobalTokens | None = None,
) -> TextRead:
    """One text as that model reads it."""
    encoding = grouped.encoding
    texts = (encoding.text,) if encoding.pair is None else (encoding.text, encoding.pair)
    return TextRead(
        id=text_id,
        model=place.name,
        model_index=place.index,
        revision=model.revision,
        dtype=model.dtype,
        text=encoding.text,
        pair=encoding.pair,
        # One digest per text, each equal to what sha256sum prints: no two pairs share a value.
        text_sha256=", ".join(map(_sha256, texts)),
        layers=model.spec.layers if isinstance(model, ElmoModel) else model.layer_count,
        heads=_heads(model),
        total_tokens=encoding.original_tokens,
        kept_tokens=encoding.kept_tokens,
        max_tokens=model.max_tokens,
        note=_note(place, model, encoding),
        tokens=tuple(_token(encoding, grouped, token) for token in range(len(encoding))),
        words=tuple(_word(grouped, word) for word in range(len(grouped))),
        global_spans=spans,
        global_tokens=_global_tokens(model, encoding, global_tokens),
    )


def _heads(model: AnyModel) -> tuple[int, ...]:
    """Heads of each layer."""
    if isinstance(model, ElmoModel):
        return (0,) * model.spec.layers
    return tuple(layer.mixer.heads for layer in model.spec.layers)


def _global_tokens(model: AnyModel, encoding: Encoding, choice: GlobalTokens | None) -> tuple[int, ...]:
    if isinstance(model, ElmoModel) or not has_global_tokens(model.spec):
        return ()
    if choice is None:
        choice = trained_global_tokens(model.spec, paired=encoding.pair is not None)
    return tuple(places(encoding, choice))


def _note(place: ModelSlot, model: AnyModel, encoding: Encoding) -> str | None:
    trained = None if isinstance(model, ElmoModel) else model.checkpoint.trained_tokens
    if trained is None or len(encoding) <= trained:
        return None
    return (
        f"the text has {len(encoding):,} tokens and {place.name} was trained on at most {trained:,}; "
        "it is not truncated, and the quality of its results is unknown"
    )


def _token(encoding: Encoding, grouped: Words, token: int) -> Token:
    word = int(grouped.of_token[token])
    return Token(
        id=int(encoding.ids[token]),
        piece=encoding.pieces[token],
        surface=encoding.surface(token),
        start=int(encoding.offsets[token, 0]),
        end=int(encoding.offsets[token, 1]),
        special=bool(encoding.special[token]),
        in_pair=bool(encoding.sequence_ids[token] == 1),
        word=word,
        category=_category(encoding, token, first=int(grouped.first_tokens[word]) == token),
    )


def _category(encoding: Encoding, token: int, *, first: bool) -> str:
    if encoding.special[token]:
        return "special"
    if is_punctuation(encoding, token):
        return "punctuation"
    return "word" if first else "piece"


def _word(grouped: Words, word: int) -> Word:
    tokens = (grouped.of_token == word).nonzero()[0]
    return Word(
        surface=grouped.surface(word),
        start=int(grouped.spans[word, 0]),
        end=int(grouped.spans[word, 1]),
        in_pair=bool(grouped.in_pair[word]),
        first=int(tokens[0]),
        stop=int(tokens[-1]) + 1,
    )


def _kind(mixer: object) -> str:
    """The attention pattern of a layer, in a few words, and whether its rows sum to less than 1."""
    if not isinstance(mixer, SoftmaxAttention):
        return "linear"
    kind = _pattern(mixer)
    return f"{kind}, rows sum to less than 1 (attention sinks)" if mixer.sinks else kind


def _pattern(mixer: SoftmaxAttention) -> str:
    match mixer.pattern:
        case FullAttention():
            beside = ", beside convolutions, which are no attention"
            return f"full attention{'' if mixer.span_convolution is None else beside}"
        case CausalAttention():
            return "causal attention"
        case SlidingWindow(radius, dilation):
            return f"window {radius}" if dilation == 1 else f"window {radius} every {dilation}"
        case SlidingWindowGlobal(window):
            return f"window {window.radius} and global tokens"
        case BlockSparse(block):
            return f"blocks of {block}"
        case _:
            assert_never(mixer.pattern)
