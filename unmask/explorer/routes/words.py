"""Words: word-level maps, vocabulary fit, predictions, logit lens and head ablations."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.routes.attribution import (
    AttributionQuery,
    Target,
    TargetQuery,
    ask,
    is_mask,
    masked_at,
    need_predictor,
    plain_encoder,
    target_of,
)
from unmask.explorer.routes.maps import SPECIALS, WEIGHTS, Special, over_of
from unmask.explorer.routes.route import MAX_LISTED, MAX_WORDS, Route, head_of, of_text, token_of
from unmask.explorer.sessions.described import Word
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot, json_answer
from unmask.http.worker import Watch
from unmask.interpret.attention.rectangles import Over
from unmask.interpret.attention.view import AttentionView, ChosenMaps, Weight
from unmask.interpret.effects.ablation import Effect, How, Importance, ablate, importance
from unmask.interpret.effects.logit_lens import LogitLens as Found
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.interpret.words.words import VocabularyFit, grouped_map, vocabulary_fit
from unmask.tasks.fill import Prediction
from unmask.text.tokenizer import spellings

HOWS: tuple[How, ...] = get_args(How)
RULE = "summed over the tokens of the attended word, averaged over those of the attending (Clark et al. 2019)"
BY_DECODER = (
    "this model predicts words with an enhanced mask decoder instead of its last layer, so there is "
    "one layer fewer"
)


@dataclass(frozen=True)
class OwnWord:
    """The actual token: its probability and its rank (1: the most likely)."""

    piece: str
    id: int
    probability: float
    rank: int


@dataclass(frozen=True)
class Fill:
    """Predictions at one token, which is masked unless it was a mask token already; then ``own`` is None."""

    token: int
    was_mask: bool
    own: OwnWord | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class FillRequest(PageRequest):
    """What the model would predict at a token, were it masked."""

    path = "texts/{text}/fill"
    answer = Fill
    saved_in = ("words",)
    needs = "can_fill"

    text: str
    token: int
    top: int = 8


@dataclass(frozen=True)
class LensLayer:
    """The MLM head's prediction after a layer; 0 is the embeddings."""

    level: int
    own: OwnWord | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class Lens:
    """The logit lens: the MLM head applied to every level's state at one token."""

    token: int
    masked: bool
    note: str | None
    levels: tuple[LensLayer, ...]


@dataclass(frozen=True)
class LensRequest(PageRequest):
    """What the model would predict at a token after every level, were it masked."""

    path = "texts/{text}/lens"
    answer = Lens
    saved_in = ("words",)
    needs = "can_fill"

    text: str
    token: int
    top: int = 5


@dataclass(frozen=True)
class Ablation:
    """The ablation of one head. ``effect`` is before minus after, in ``unit``: positive if the head helped.

    ``what`` says in words what was measured; ``estimate`` is the first-order estimate, where there is one.
    """

    layer: int
    head: int
    token: int | None
    how: str
    what: str
    unit: str
    before: float
    after: float
    effect: float
    estimate: float | None


@dataclass(frozen=True)
class AblationRequest(PageRequest):
    """One head ablated; the first target that the model has, where none is given.

    Without a token, the effect on the embedding of the text.
    """

    path = "texts/{text}/ablate/{layer}/{head}"
    answer = Ablation

    text: str
    layer: int
    head: int
    token: int | None
    how: How
    target: Target | None = None


@dataclass(frozen=True)
class ImportanceMeta:
    """Of ``importance``: ``values`` (L, H), first-order estimates of what each head contributes, in the sign
    and unit of `Ablation.effect`; ``normalized``, their sizes divided by each layer's length (Michel et al.
    2019)."""

    token: int
    what: str
    unit: str


@dataclass(frozen=True)
class ImportanceRequest(PageRequest):
    """First-order estimates of what each head contributes, for the same targets as an ablation."""

    path = "texts/{text}/importance"
    answer = Arrays[ImportanceMeta]
    saved_in = ("words",)

    text: str
    token: int
    target: Target | None = None


@dataclass(frozen=True)
class WordsMeta:
    """Of ``words/{layer}/{head}``: values (W, W), rows and columns as `TextRead.words`. ``rule``: how tokens
    became words."""

    words: int
    weight: str
    rule: str


@dataclass(frozen=True)
class WordMapRequest(PageRequest):
    """The map of a head between words.

    ``special="hide"`` leaves out special tokens, and divides the rest of each row of tokens by its sum.
    ``over`` asks for the heads of the layer, or for all heads, as one map of tokens first.
    """

    path = "texts/{text}/words/{layer}/{head}"
    answer = Arrays[WordsMeta]

    text: str
    layer: int
    head: int
    weight: Weight = "raw"
    special: Special = "show"
    over: Over | None = None


@dataclass(frozen=True)
class Words:
    """The words of a text and the tokens of each."""

    words: tuple[Word, ...]


@dataclass(frozen=True)
class WordsRequest(PageRequest):
    """The words of a text."""

    path = "texts/{text}/words"
    answer = Words

    text: str


@dataclass(frozen=True)
class VocabularyRequest(PageRequest):
    """How well a model's vocabulary fits a text."""

    path = "texts/{text}/vocabulary"
    answer = VocabularyFit
    saved_in = ("tokens",)

    text: str


def spans(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/words``: the words and the tokens of each."""
    return json_answer(Words(session.described.words))


def word_map(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/words/{l}/{h}?weight=&special=``: values (W, W)."""
    layer, head = head_of(session, request)
    weight, special = request.choice("weight", WEIGHTS), request.choice("special", SPECIALS)
    over = over_of(request)
    words = session.words
    if len(words) > MAX_WORDS:
        raise cannot(
            f"the text has {len(words):,} words and a map between words holds at most {MAX_WORDS:,}; "
            "look at the map of its tokens, or give a shorter text"
        )

    def compute(view: AttentionView) -> NDArray[np.float32]:
        maps = ChosenMaps(view, weight, session.encoding.special if special == "hide" else None, over)
        return grouped_map(maps, layer, head, words.of_token, len(words))

    key = ("words", layer, head, weight, special, over)
    values = session.cache.of(key, lambda: session.ask(compute))
    return array_answer({"values": values}, WordsMeta(len(words), weight, RULE))


def vocabulary(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/vocabulary``."""
    try:
        return json_answer(vocabulary_fit(session.encoding, session.model.tokenizer))
    except InvalidRequest as error:
        raise cannot(str(error)) from None


def fill(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/fill?token=&top=``: what the model would put there, were it masked."""
    token, levels, was_mask = _levels(session, request)
    return json_answer(Fill(token, was_mask, levels[-1].own, levels[-1].predictions))


def of_levels(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/lens?token=&top=``: the same after every level."""
    token, levels, was_mask = _levels(session, request)
    by_decoder = len(levels) <= session.layer_count
    note = BY_DECODER if by_decoder else None
    return json_answer(Lens(token, not was_mask, note, levels))


def of_head(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/ablate/{l}/{h}?token=&how=zero|mean``: one head taken out, measured."""
    layer, head = head_of(session, request)
    kind, how = target_of(session, request), request.choice("how", HOWS)
    whole = kind == "embedding" and "token" not in request.query
    token = None if whole else token_of(session, request)

    def measure(view: AttentionView, watch: Watch) -> tuple[AttributionQuery, Effect]:
        query = ask(session, view, TargetQuery(kind, token), watch)
        return query, ablate(query.cache, query.target, layer, head, how)

    query, effect = session.analyse(("ablate", kind, token, layer, head, how), measure)
    estimate = None
    if how == "zero" and kind != "embedding" and token is not None:
        estimate = float(_importance(session, kind, token)[1].slopes[layer, head])
    return json_answer(
        Ablation(
            layer=layer,
            head=head,
            token=token,
            how=how,
            what=query.words,
            unit=effect.unit,
            before=effect.before,
            after=effect.after,
            effect=effect.effect,
            estimate=estimate,
        )
    )


def of_all_heads(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/importance?token=``: first-order estimates, values and normalized (L, H)."""
    kind, token = target_of(session, request), token_of(session, request)
    query, estimates = _importance(session, kind, token)
    arrays = {"values": estimates.slopes, "normalized": estimates.values}
    return array_answer(arrays, ImportanceMeta(token, query.words, estimates.unit))


def _importance(session: TextSession, kind: str, token: int) -> tuple[AttributionQuery, Importance]:
    def measure(view: AttentionView, watch: Watch) -> tuple[AttributionQuery, Importance]:
        query = ask(session, view, TargetQuery(kind, token), watch)
        encoder = plain_encoder(session)
        return query, importance(query.cache, query.target, encoder=encoder, watch=watch)

    return session.analyse(("importance", kind, token), measure)


def _levels(session: TextSession, request: Request) -> tuple[int, tuple[LensLayer, ...], bool]:
    """Predictions of every level at a token, which is masked unless it is a mask already."""
    token, was_mask = token_of(session, request), False
    need_predictor(session)
    most = min(MAX_LISTED, session.model.spec.embedding.vocabulary)
    top, actual = request.number("top", min(8, most), 1, most), int(session.encoding.ids[token])
    was_mask = is_mask(session, token)

    def predict(view: AttentionView, watch: Watch) -> Found:
        cache = masked_at(session, view, token, watch)
        return logit_lens(cache, [token], top_k=top, follow=None if was_mask else [actual], watch=watch)

    lens = session.analyse(("lens", token, top), predict)
    levels = tuple(
        _level(session, lens, level, None if was_mask else actual) for level in range(lens.ids.shape[1])
    )
    return token, levels, was_mask


def _level(session: TextSession, lens: Found, level: int, actual: int | None) -> LensLayer:
    tokenizer = session.model.tokenizer
    predictions = tuple(
        Prediction(*spellings(tokenizer, int(id)), int(id), float(probability))
        for id, probability in zip(lens.ids[0, level], lens.probabilities[0, level], strict=True)
    )
    word = None
    if actual is not None:
        piece = spellings(tokenizer, actual)[0]
        word = OwnWord(piece, actual, float(lens.followed[0, level]), int(lens.ranks[0, level]) + 1)
    return LensLayer(level, word, predictions)


ROUTES = (
    Route.get(WordsRequest, of_text(spans)),
    Route.get(WordMapRequest, of_text(word_map)),
    Route.get(VocabularyRequest, of_text(vocabulary)),
    Route.get(FillRequest, of_text(fill)),
    Route.get(LensRequest, of_text(of_levels)),
    Route.get(AblationRequest, of_text(of_head)),
    Route.get(ImportanceRequest, of_text(of_all_heads)),
)
