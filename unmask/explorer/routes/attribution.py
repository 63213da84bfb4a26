"""Where a token or a prediction comes from: questions about a target, rollout and gradient attribution."""

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, quoted
from unmask.explorer.routes.route import MAX_LISTED, AppContext, Route, of_text, token_of
from unmask.explorer.routes.tasks import class_names, classifiers, head_logits, need_classifier
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer, typed_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.corpus.features import (
    Feature,
    FeatureExample,
    FeatureOrder,
    features_folder,
    in_order,
    load_features,
    middle_layer,
    text_features,
)
from unmask.interpret.effects.attribution import (
    BASELINES,
    STEPS,
    Attribution,
    Completeness,
    Fusion,
    Method,
    Rollout,
    attribution,
    named_baseline,
    rollout,
)
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.interpret.effects.target import (
    AttributionTarget,
    Class,
    Embedding,
    TargetScore,
    TokenClasses,
    Word,
)
from unmask.spec import PooledVector
from unmask.spec.encoder import masked_lm_role
from unmask.spec.heads import is_per_token
from unmask.text.tokenizer import masked

Target = Literal["word", "class", "embedding"]


MOST_FEATURES = 1 << 20
LISTED_EXAMPLES = 4
"""Texts of each feature in a list of all."""
TARGETS: tuple[Target, ...] = get_args(Target)
PAIRS = re.compile(r"\d{1,7}:\d{1,7}(?:,\d{1,7}:\d{1,7}){0,511}")
"""Tokens with a class each; as many as a long name has words, and more."""


@dataclass(frozen=True)
class TargetQuery:
    """The target of a request: its kind, a token (None: the whole text), the id of a word or class."""

    kind: str
    token: int | None
    id: int | None = None
    classes: tuple[tuple[int, int], ...] = ()
    """Tokens with a class each, of a head for tokens."""


@dataclass(frozen=True)
class AttributionQuery:
    """A target, the text in which it is asked, and both in words."""

    cache: ActivationCache
    target: AttributionTarget
    words: str


def plain_encoder(session: TextSession) -> Encoder:
    """The text's model in modules that give gradients."""
    return session.place.plain()


def need_predictor(session: TextSession) -> None:
    """Refuse with a sentence unless the model predicts words and can be asked for one."""
    model = session.model
    try:
        masked_lm_role(model.spec, session.place.name)
    except InvalidRequest as error:
        raise cannot(str(error)) from None
    if model.tokenizer.mask_id is None:
        raise cannot(f"the tokenizer of {session.place.name} has no mask token, so no word can be asked for")


def is_mask(session: TextSession, token: int) -> bool:
    """Whether the text has the mask there already."""
    return int(session.encoding.ids[token]) == session.model.tokenizer.mask_id


def masked_at(session: TextSession, view: AttentionView, token: int, watch: Watch) -> ActivationCache:
    """The text with that token masked; kept for the next question about the same token."""
    if is_mask(session, token):
        return view.cache
    cache = session.masked.get(token)
    if cache is None:
        encoding = masked(session.encoding, [token], session.model.tokenizer, name=session.place.name)
        cache = session.run(session.model.encoder, encoding, watch)
        # One at a time: each is as large as the text's own.
        session.masked = {token: cache}
    return cache


def target_of(session: TextSession, request: Request) -> str:
    """The kind of target that the query asks for, else the first that this model has."""
    roles = session.model.encoder.heads
    words = ("masked" in roles or "enhanced" in roles) and not session.model.spec.causal
    target = request.query.get("target") or ("word" if words else "embedding")
    request = Request(request.parts, {**request.query, "target": target})
    target = request.choice("target", TARGETS)
    if target == "word":
        need_predictor(session)
    if target == "class":
        need_classifier(session)
    return target


def ask(session: TextSession, view: AttentionView, question: TargetQuery, watch: Watch) -> AttributionQuery:
    """The target of a question; without an id, the word that stands there, or the class that is predicted."""
    kind, token, id = question.kind, question.token, question.id
    if kind == "word":
        assert token is not None
        cache = masked_at(session, view, token, watch)
        if id is None:
            id = _predicted(cache, token) if is_mask(session, token) else int(session.encoding.ids[token])
        words = f"the word “{written(session, id)}” at token {token}, which is masked"
        return AttributionQuery(cache, Word(token, id), words)
    if kind == "class" and question.classes:
        return _classes_of_tokens(view, question.classes)
    if kind == "class":
        return _class(view, token, id)
    if token is not None:
        name = session.encoding.surface(token) or session.encoding.pieces[token]
        return AttributionQuery(
            view.cache, Embedding(token=token), f"the last state of token {token}, “{name}”"
        )
    head = session.model.checkpoint.head
    pooling = head.pooling if isinstance(head, PooledVector) else ("mean",)
    words = f"the text's embedding ({' and '.join(pooling)} of its tokens)"
    return AttributionQuery(view.cache, Embedding(pooling), words)


def written(session: TextSession, id: int) -> str:
    """A word of the vocabulary as people write it, without the marks of its tokenizer."""
    engine = session.model.tokenizer.engine
    return engine.decode([id], skip_special_tokens=False).strip() or engine.id_to_token(id) or f"<{id}>"


def _class(view: AttentionView, token: int | None, id: int | None) -> AttributionQuery:
    cache = view.cache
    role, head = next(iter(classifiers(cache).items()))
    at = (token or 0) if is_per_token(head) else None
    logits = head_logits(cache, role)
    chosen = int((logits if at is None else logits[at]).argmax()) if id is None else id
    if chosen >= head.classes:
        raise cannot(f"there is no class {chosen}; the classifier {role} has 0 to {head.classes - 1}")
    where = "" if at is None else f" at token {at}"
    words = f"the class {class_names(head)[chosen]} of the classifier {role}{where}"
    return AttributionQuery(cache, Class(role, chosen, at), words)


def _classes_of_tokens(view: AttentionView, pairs: tuple[tuple[int, int], ...]) -> AttributionQuery:
    """Classes of several tokens; their sum is what is explained."""
    role, head = next(iter(classifiers(view.cache).items()))
    tokens, classes = zip(*pairs, strict=True)
    target = TokenClasses(role, tokens, classes)
    TargetScore(view.cache, target)  # refuses what the head does not have
    encoding, names = view.encoding, class_names(head)
    listed = ", ".join(
        f"{names[number]} at “{encoding.surface(token) or encoding.pieces[token]}”"
        for token, number in pairs[:4]
    )
    more = "" if len(pairs) <= 4 else f" and {len(pairs) - 4} more"
    return AttributionQuery(view.cache, target, f"{listed}{more} (classifier {role})")


def classes_of(request: Request, tokens: int) -> tuple[tuple[int, int], ...]:
    """The pairs of ``classes=1:5,2:6``.

    Raises:
        InvalidRequest: it is something else, or names a token that the text does not have.
    """
    text = request.query.get("classes")
    if not text:
        return ()
    if not PAIRS.fullmatch(text):
        raise InvalidRequest(f"classes is {quoted(text)}; write token:class, such as 1:5,2:6")
    pairs = tuple(
        (int(token), int(number)) for token, _, number in (pair.partition(":") for pair in text.split(","))
    )
    if any(token >= tokens for token, _ in pairs):
        raise InvalidRequest(f"classes names a token from {tokens} on; the text has {tokens}")
    return pairs


def _predicted(cache: ActivationCache, token: int) -> int:
    return int(logit_lens(cache, [token], top_k=1).ids[0, -1, 0])


FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
METHODS: tuple[Method, ...] = get_args(Method)
MOST_STEPS = 1000
"""Of integrated gradients, for one answer."""


@dataclass(frozen=True)
class RolloutRequest(PageRequest):
    """Attention rollout; without a token, of all tokens weighted equally."""

    path = "texts/{text}/rollout"
    answer = Arrays[Rollout]

    text: str
    token: int | None
    fusion: Fusion


@dataclass(frozen=True)
class RelevanceMeta:
    """Of an attribution: values (N,), and of a method about attention by_layer (L, N). ``target`` names the
    target. ``baseline`` and ``completeness`` are those of integrated gradients."""

    token: int | None
    target: str
    words: str
    method: Method
    unit: str
    baseline: str | None = None
    completeness: Completeness | None = None


@dataclass(frozen=True)
class AttributionRequest(PageRequest):
    """Gradient attribution for a target; without ``id``, for the word in the text or the predicted class.

    ``classes``: pairs ``token:class`` with commas between them, of a head for tokens, whose logits are added.
    Without ``method``, it is chefer; ``baseline`` (zero, mask or pad) and ``steps`` are those of integrated
    gradients.
    """

    path = "texts/{text}/relevance"
    answer = Arrays[RelevanceMeta]

    text: str
    token: int | None
    target: Target
    id: int | None = None
    classes: str | None = None
    method: Method | None = None
    baseline: str | None = None
    steps: int | None = None


def of_rollout(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/rollout?token=&fusion=``: values (L + 1, N); without a token, of all alike."""
    token = token_of(session, request) if "token" in request.query else None
    fusion = request.choice("fusion", FUSIONS)

    def follow(view: AttentionView, watch: Watch) -> Rollout:
        return rollout(view.cache, token, fusion=fusion, watch=watch)

    return typed_answer(session.analyse(("rollout", token, fusion), follow))


def of_relevance(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/relevance?token=&target=&id=&classes=&method=&baseline=&steps=``: values, by_layer."""
    question = target_query(session, request)
    method, name = request.choice("method", METHODS), request.choice("baseline", BASELINES)
    steps = request.number("steps", STEPS, 1, MOST_STEPS)

    def follow(view: AttentionView, watch: Watch) -> tuple[AttributionQuery, Attribution]:
        query = ask(session, view, question, watch)
        integrated = method == "integrated_gradients"
        return query, attribution(
            query.cache,
            query.target,
            method=method,
            baseline=named_baseline(name, session.model.tokenizer) if integrated else "zero",
            steps=steps,
            encoder=plain_encoder(session),
            watch=watch,
        )

    query, relevance = session.analyse(("relevance", question, method, name, steps), follow)
    arrays = {"values": relevance.values}
    if relevance.by_layer is not None:
        arrays["by_layer"] = relevance.by_layer
    meta = RelevanceMeta(
        question.token,
        question.kind,
        f"{query.words}, by its {relevance.unit}",
        method,
        relevance.unit,
        name if relevance.completeness else None,
        relevance.completeness,
    )
    return array_answer(arrays, meta)


def target_query(session: TextSession, request: Request) -> TargetQuery:
    """The target that ``token``, ``target``, ``id`` and ``classes`` of a request name."""
    kind = target_of(session, request)
    token = token_of(session, request) if "token" in request.query or kind == "word" else None
    highest = session.model.spec.embedding.vocabulary - 1
    id = request.number("id", None, 0, highest) if "id" in request.query else None
    return TargetQuery(kind, token, id, classes_of(request, len(session)))


@dataclass(frozen=True)
class FeatureOfText:
    """A feature that is active in the text, with its density and strongest tokens over its corpus."""

    number: int
    token: int
    activation: float
    effect: float
    tokens: tuple[int, ...]
    density: float
    examples: tuple[FeatureExample, ...]


@dataclass(frozen=True)
class FeaturesOfText:
    """Of ``features``: see `unmask.interpret.corpus.features.TextFeatures`. ``words`` names the target.

    Where no features were ``learned`` for the layer, ``verdict`` says how, and all else is empty.
    """

    learned: bool
    layer: int
    words: str
    unit: str
    value: float
    explained: float
    corpus: str
    verdict: str
    active: tuple[FeatureOfText, ...]


@dataclass(frozen=True)
class FeaturesRequest(PageRequest):
    """The features of a layer that are active in the text, and what the target loses without each.

    They are those that ``unmask features train`` has kept for the model and the layer.
    """

    path = "texts/{text}/features"
    answer = FeaturesOfText

    text: str
    layer: int
    target: Target
    token: int | None = None
    id: int | None = None
    classes: str | None = None
    top: int = 20


def of_features(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/features?layer=&target=&token=&id=&classes=&top=``."""
    layer = request.number("layer", middle_layer(session.model.encoder), 0, session.layer_count - 1)
    top, question = request.number("top", 20, 1, MAX_LISTED), target_query(session, request)
    folder = features_folder(session.model.content_digest(), layer)
    if not folder.is_dir():
        how = _not_learned(session.place.name, layer)
        return json_answer(FeaturesOfText(False, layer, "", "", 0.0, 0.0, "", how, ()))

    def measure(view: AttentionView, watch: Watch) -> FeaturesOfText:
        known, query = load_features(folder), ask(session, view, question, watch)
        target = query.target
        if isinstance(target, Embedding) and target.toward is None:
            before_E = TargetScore(query.cache, target).embedding()
            target = replace(target, toward=tuple(before_E.tolist()))
        found = text_features(known, query.cache, target, top=top, watch=watch)
        active = tuple(
            FeatureOfText(
                **vars(one),
                density=known.features[one.number].density,
                examples=known.features[one.number].examples,
            )
            for one in found.active
        )
        return FeaturesOfText(
            True,
            layer,
            query.words,
            found.unit,
            found.value,
            found.explained,
            known.corpus,
            known.verdict(),
            active,
        )

    return json_answer(session.analyse(("features", layer, question, top), measure))


def _not_learned(model: str, layer: int) -> str:
    return (
        f"there are no features of layer {layer} of this model; learn them with: unmask features "
        f"train -m {model} --layer {layer}"
    )


@dataclass(frozen=True)
class FeatureList:
    """Some of the features of a layer, from the place ``first`` on in the order that was asked for.

    Where no features were ``learned`` for the layer, ``verdict`` says how, and all else is empty.
    """

    learned: bool
    layer: int
    corpus: str
    verdict: str
    total: int
    dead: int
    first: int
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class FeatureListRequest(PageRequest):
    """All features of a layer of a model, page by page; ``model`` is its number."""

    path = "features"
    answer = FeatureList

    model: int
    layer: int
    order: FeatureOrder = "density"
    first: int = 0
    count: int = 24


def feature_list(context: AppContext, request: Request) -> Answer:
    """``GET features?model=&layer=&order=&first=&count=``."""
    place = context.models.at(request.number("model", 0, 0, len(context.models.places) - 1))
    model = place.need()
    layer = request.number("layer", middle_layer(model.encoder), 0, model.layer_count - 1)
    order = request.choice("order", get_args(FeatureOrder))
    first, count = request.number("first", 0, 0, MOST_FEATURES), request.number("count", 24, 1, MAX_LISTED)
    folder = features_folder(model.content_digest(), layer)
    if not folder.is_dir():
        return json_answer(FeatureList(False, layer, "", _not_learned(place.name, layer), 0, 0, 0, ()))
    # Features that are trained again are read again.
    key = ("feature list", str(folder), folder.stat().st_mtime_ns)
    known = context.analyses.once(key, lambda watch: load_features(folder))
    listed = in_order(known.features, order)[first : first + count]
    some = tuple(replace(feature, examples=feature.examples[:LISTED_EXAMPLES]) for feature in listed)
    verdict, total = known.verdict(), len(known.features)
    return json_answer(FeatureList(True, layer, known.corpus, verdict, total, known.dead, first, some))


ROUTES = (
    Route.get(FeatureListRequest, feature_list),
    Route.get(FeaturesRequest, of_text(of_features)),
    Route.get(RolloutRequest, of_text(of_rollout)),
    Route.get(AttributionRequest, of_text(of_relevance)),
)
