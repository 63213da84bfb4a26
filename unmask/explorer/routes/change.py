"""One model on two texts: what changes between a text and the same text with a word replaced."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.routes.attribution import Target, ask, masked_at, need_predictor, target_query
from unmask.explorer.routes.route import MAX_LISTED, AppContext, Route, of_text, token_of
from unmask.explorer.routes.tasks import class_scores
from unmask.explorer.routes.words import OwnWord
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer, typed_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot, json_answer
from unmask.http.worker import Watch
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.comparison import (
    AttentionChange,
    attention_change,
    attention_to,
    compare_texts,
    prediction_change,
    word_probabilities,
)
from unmask.interpret.attention.head_distances import segment_attention
from unmask.interpret.attention.view import AttentionView
from unmask.interpret.effects.patching import Part, Patching, patch_activations
from unmask.interpret.words.alignment import WordPair, pair_words
from unmask.spec import Classifier, PooledVector
from unmask.tasks.fill import Prediction
from unmask.text.borders import is_extending, is_word
from unmask.text.tokenizer import spellings


@dataclass(frozen=True)
class ClassChange:
    """The probability of a label of the model's classifier of texts, or the value of a regression."""

    label: str
    before: float
    after: float


@dataclass(frozen=True)
class TextChangeMeta:
    """Of ``change``: ``cosine`` (L + 1, P), the states of the P words that both texts have, level by level.

    ``pairs`` has every word of both texts in order, numbered as in `TextRead.words`. ``pooling``: how the
    embeddings, whose cosine is ``embedding_cosine``, are pooled.
    """

    before: str
    after: str
    pairs: tuple[WordPair, ...]
    embedding_cosine: float
    pooling: str
    classes: tuple[ClassChange, ...]


@dataclass(frozen=True)
class TextChangeRequest(PageRequest):
    """One model on two texts, aligned by their words."""

    path = "change/{before}/{after}"
    answer = Arrays[TextChangeMeta]

    before: str
    after: str


@dataclass(frozen=True)
class GlobalChangeMeta:
    """Of ``change/global``: ``before`` and ``after`` (L, H), the attention to ``tokens``, which became
    global, added up over them, mean over queries."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class GlobalChangeRequest(PageRequest):
    """One text with two choices of global tokens: what the new ones receive."""

    path = "change/{before}/{after}/global"
    answer = Arrays[GlobalChangeMeta]

    before: str
    after: str


@dataclass(frozen=True)
class HeadChangeRequest(PageRequest):
    """How much the attention of every head changed between two texts."""

    path = "change/{before}/{after}/heads"
    answer = Arrays[AttentionChange]

    before: str
    after: str


@dataclass(frozen=True)
class PatchingMeta:
    """Of ``patching``: values and effect, rows by columns, see
    `unmask.interpret.effects.patching.Patching`. ``words`` names the target, which is ``clean`` on the first
    text and ``corrupted`` on the second."""

    part: Part
    target: str
    token: int | None
    words: str
    unit: str
    clean: float
    corrupted: float


@dataclass(frozen=True)
class PatchingRequest(PageRequest):
    """The second text with one state of the first at a time: which brings the first one's prediction back.

    Without ``id``, of the word in the first text or the class predicted for it. ``part`` is residual (levels
    by tokens), attention_output or feedforward_output (layers by tokens), or head_output (layers by heads).
    """

    path = "change/{before}/{after}/patching"
    answer = Arrays[PatchingMeta]

    before: str
    after: str
    part: Part
    target: Target
    token: int | None = None
    id: int | None = None
    classes: str | None = None


@dataclass(frozen=True)
class ChangedPrediction:
    """A predicted word and its probability in both texts."""

    piece: str
    text: str
    id: int
    before: float
    after: float


@dataclass(frozen=True)
class PredictionChange:
    """Predictions at a token of the second text and its counterpart in the first, which are masked.

    ``predictions`` has the most likely words of either text and the two actual tokens, ``own_before`` and
    ``own_after``. ``same``: both texts have the same tokens once these two are masked, so nothing changes.
    """

    token_before: int
    token_after: int
    same: bool
    own_before: int
    own_after: int
    predictions: tuple[ChangedPrediction, ...]


@dataclass(frozen=True)
class PredictionChangeRequest(PageRequest):
    """What the model would predict at a token of the second text, and in the first at the token that stands
    for it, were they masked."""

    path = "change/{before}/{after}/fill"
    answer = PredictionChange
    needs = "can_fill"

    before: str
    after: str
    token: int
    top: int = 8


@dataclass(frozen=True)
class Guesses:
    """Words that the model predicts in place of the whole word of a token.

    ``own``: the actual word, if it is one token.
    """

    token: int
    own: OwnWord | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class GuessesRequest(PageRequest):
    """What the model would write in place of the word of a token, however many tokens it has."""

    path = "texts/{text}/guesses"
    answer = Guesses
    needs = "can_fill"

    text: str
    token: int
    top: int = 8


@dataclass(frozen=True)
class SegmentsRequest(PageRequest):
    """``shares`` (L, H, 2, 3): what each text of a pair attends to: the first, the second, special tokens."""

    path = "texts/{text}/segments"
    answer = Arrays[None]

    text: str


PARTS: tuple[Part, ...] = get_args(Part)


def texts(context: AppContext, request: Request) -> Answer:
    """``GET change/{before}/{after}``: cosine (L + 1, P)."""
    before, after = _both(context, request)
    other, head = before.view, before.model.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None

    def measure(view: AttentionView) -> Answer:
        try:
            comparison = compare_texts(other.cache, view.cache, head=pooled)
        except InvalidRequest as error:
            raise cannot(str(error)) from None
        meta = TextChangeMeta(
            before=before.id,
            after=after.id,
            pairs=comparison.pairs,
            embedding_cosine=comparison.embedding_cosine,
            pooling=" and ".join(pooled.pooling if pooled else ("mean",)),
            classes=_classes(before, after),
        )
        return array_answer({"cosine": comparison.state_cosine}, meta)

    return after.ask(measure)


def heads(context: AppContext, request: Request) -> Answer:
    """``GET change/{before}/{after}/heads``: moved, to_removed and to_inserted (L, H)."""
    before, after = _both(context, request)
    other = before.view

    def measure(view: AttentionView, watch: Watch) -> AttentionChange:
        return attention_change(other.cache, view.cache, watch=watch)

    return typed_answer(after.analyse(("change", before.id), measure))


def global_tokens(context: AppContext, request: Request) -> Answer:
    """``GET change/{before}/{after}/global``: before and after (L, H)."""
    before, after = _both(context, request)
    if before.encoding.ids.tolist() != after.encoding.ids.tolist():
        raise cannot("these are two texts; global tokens are compared in one text")
    added = sorted({*after.described.global_tokens} - {*before.described.global_tokens})
    if not added:
        raise cannot("all chosen tokens are global already, as the model's head was trained; choose others")
    other = before.view

    def measure(view: AttentionView, watch: Watch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return attention_to(other.cache, added, watch), attention_to(view.cache, added, watch)

    was, now = after.analyse(("global", before.id), measure)
    return array_answer({"before": was, "after": now}, GlobalChangeMeta(tuple(added)))


def fill(context: AppContext, request: Request) -> Answer:
    """``GET change/{before}/{after}/fill?token=&top=``: predictions at a token of the second text."""
    before, after = _both(context, request)
    need_predictor(after)
    token, top = token_of(after, request), _top(after, request)
    here = _counterpart(before, after, token)
    other = before.view
    ids = [int(text.encoding.ids[at]) for text, at in ((before, here), (after, token))]

    def predict(view: AttentionView, watch: Watch) -> PredictionChange:
        masked_before, two = masked_at(before, other, here, watch), masked_at(after, view, token, watch)
        change = prediction_change(masked_before, here, two, token, top_k=top, also=ids)
        return PredictionChange(
            token_before=here,
            token_after=token,
            same=np.array_equal(masked_before.encoding.ids, two.encoding.ids),
            own_before=ids[0],
            own_after=ids[1],
            predictions=tuple(
                ChangedPrediction(*spellings(after.model.tokenizer, int(id)), int(id), float(p), float(q))
                for id, p, q in zip(change.ids, change.before, change.after, strict=True)
            ),
        )

    return json_answer(after.analyse(("change fill", before.id, token, top), predict))


def patching(context: AppContext, request: Request) -> Answer:
    """``GET change/{before}/{after}/patching?part=&target=&token=&id=``: values and effect."""
    before, after = _both(context, request)
    question, part = target_query(before, request), request.choice("part", PARTS)
    if len(before) != len(after):
        raise cannot(
            f"the texts have {len(before)} and {len(after)} tokens, and states are exchanged token by token; "
            "replace a word by another of as many tokens"
        )
    other = before.view

    def measure(view: AttentionView, watch: Watch) -> tuple[str, Patching]:
        query = ask(before, other, question, watch)
        cache = view.cache
        if question.kind == "word":
            assert question.token is not None
            cache = masked_at(after, view, question.token, watch)
        return query.words, patch_activations(query.cache, cache, query.target, part=part, watch=watch)

    try:
        words, found = after.analyse(("patching", before.id, question, part), measure)
    except InvalidRequest as error:
        raise cannot(str(error)) from None
    meta = PatchingMeta(part, question.kind, question.token, words, found.unit, found.clean, found.corrupted)
    return array_answer({"values": found.values, "effect": found.effect}, meta)


def guesses(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/guesses?token=&top=``: one mask token in place of the whole word of a token."""
    need_predictor(session)
    words = session.words
    token, top = token_of(session, request), _top(session, request)
    word = int(words.of_token[token])
    if words.special[word]:
        raise cannot(f"{words.surface(word)} is a special token of the model; choose a word of the text")
    encoding, tokenizer = session.encoding, session.model.tokenizer
    in_pair, (start, end) = bool(words.in_pair[word]), words.spans[word].tolist()
    parts: list[str | None] = [encoding.text, encoding.pair]
    whole = parts[in_pair] or ""
    # White space that a tokenizer counts to its word stays.
    start += len(whole[start:end]) - len(whole[start:end].lstrip())
    parts[in_pair] = whole[:start] + tokenizer.special_tokens["mask"] + whole[end:]

    def predict(view: AttentionView, watch: Watch) -> Guesses:
        limit = session.model.max_tokens
        text = tokenizer.encode(parts[0] or "", parts[1], max_tokens=limit, truncation="end")
        at = (text.ids == tokenizer.mask_id) & (text.offsets[:, 0] <= start) & (text.offsets[:, 1] > start)
        places = np.flatnonzero(at & ((text.sequence_ids == 1) == in_pair))
        if not len(places):
            raise cannot("this tokenizer does not read a mask token in a text, so no word can be asked for")
        cache = ActivationCache.of(session.model.encoder, text, watch=watch)
        p_V = word_probabilities(cache, int(places[0]))
        tokens = np.flatnonzero(words.of_token == word)
        actual = _word_at(session, p_V, int(encoding.ids[tokens[0]])) if len(tokens) == 1 else None
        return Guesses(token, actual, _predictions(session, p_V, top))

    return json_answer(session.analyse(("guesses", token, top), predict))


def segments(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/segments``: shares (L, H, 2, 3)."""
    if session.encoding.pair is None:
        raise cannot("this is a single text; attention between two texts is that of a pair")
    shares = session.analyse(("segments",), lambda view, watch: segment_attention(view.cache, watch=watch))
    return array_answer({"shares": shares})


def _word_at(session: TextSession, p_V: np.ndarray, id: int) -> OwnWord:
    rank = int((p_V > p_V[id]).sum()) + 1
    return OwnWord(spellings(session.model.tokenizer, id)[0], id, float(p_V[id]), rank)


def _predictions(session: TextSession, p_V: np.ndarray, top: int) -> tuple[Prediction, ...]:
    """The most likely pieces that are whole words: a guess stands in place of a word."""
    tokenizer, predictions = session.model.tokenizer, []
    for id in np.argsort(-p_V, kind="stable").tolist():
        piece, text = spellings(tokenizer, id)
        if is_word(text.strip()) and not _continues(text):
            predictions.append(Prediction(piece, text.strip(), id, float(p_V[id])))
        if len(predictions) == top:
            break
    return tuple(predictions)


def _continues(text: str) -> bool:
    """Whether a piece decodes to more than a word, as the continuation mark of WordPiece does."""
    letters = text.strip()
    return is_extending(letters[0]) or any(
        not (letter.isalnum() or is_extending(letter) or letter in "'’-_.") for letter in letters
    )


def _both(context: AppContext, request: Request) -> tuple[TextSession, TextSession]:
    before, after = (context.texts.get(part) for part in request.parts[:2])
    if before.place is not after.place:
        raise cannot(
            f"the texts were read by {before.place.name} and {after.place.name}; what changes between two "
            "texts is asked of one model"
        )
    return before, after


def _counterpart(before: TextSession, after: TextSession, token: int) -> int:
    """The token of the first text that stands for one of the second: of the same place in its word."""
    word = int(after.words.of_token[token])
    pairs = pair_words(before.words, after.words)
    here = next((pair.before for pair in pairs if pair.after == word), None)
    if here is None:
        raise cannot(
            f"the word of token {token}, “{after.encoding.surface(token)}”, was inserted; "
            "the first text has no word that stands for it"
        )
    place = token - int(after.words.first_tokens[word])
    tokens = np.flatnonzero(before.words.of_token == here)
    return int(tokens[min(place, len(tokens) - 1)])


def _classes(before: TextSession, after: TextSession) -> tuple[ClassChange, ...]:
    """Of a classifier of texts, if the model has one."""
    roles = [head.role for head in after.model.spec.heads if isinstance(head, Classifier)]
    if "sequence" not in roles:
        return ()
    scores_before, other = (
        class_scores(session.view.cache, session.encoding, "sequence") for session in (before, after)
    )
    return tuple(ClassChange(label, scores_before[label], other[label]) for label in other)


def _top(session: TextSession, request: Request) -> int:
    most = min(MAX_LISTED, session.model.spec.embedding.vocabulary)
    return request.number("top", min(8, most), 1, most)


ROUTES = (
    Route.get(TextChangeRequest, texts),
    Route.get(HeadChangeRequest, heads),
    Route.get(GlobalChangeRequest, global_tokens),
    Route.get(PredictionChangeRequest, fill),
    Route.get(PatchingRequest, patching),
    Route.get(GuessesRequest, of_text(guesses)),
    Route.get(SegmentsRequest, of_text(segments)),
)
