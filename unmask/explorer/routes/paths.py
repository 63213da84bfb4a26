"""Attention rollout, and gradient attribution for a target."""

from dataclasses import dataclass
from typing import get_args

from unmask.explorer.routes.queries import (
    AttributionQuery,
    Target,
    TargetQuery,
    ask,
    classes_of,
    plain_encoder,
    target_of,
)
from unmask.explorer.routes.route import Route, of_text, token_of
from unmask.explorer.sessions.text_session import TextSession
from unmask.explorer.wire.binary import array_answer, typed_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.effects.attribution import Attribution, Fusion, Rollout, attribution, rollout

FUSIONS: tuple[Fusion, ...] = get_args(Fusion)


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
    """Of an attribution: values (N,), by_layer (L, N). ``target`` names the target."""

    token: int | None
    target: str
    words: str


@dataclass(frozen=True)
class AttributionRequest(PageRequest):
    """Gradient attribution for a target; without ``id``, for the word in the text or the predicted class.

    ``classes``: pairs ``token:class`` with commas between them, of a head for tokens, whose logits are added.
    """

    path = "texts/{text}/relevance"
    answer = Arrays[RelevanceMeta]

    text: str
    token: int | None
    target: Target
    id: int | None = None
    classes: str | None = None


def of_rollout(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/rollout?token=&fusion=``: values (L + 1, N); without a token, of all alike."""
    token = token_of(reading, request) if "token" in request.query else None
    fusion = request.choice("fusion", FUSIONS)

    def follow(view: AttentionView, watch: Watch) -> Rollout:
        return rollout(view.cache, token, fusion=fusion, watch=watch)

    return typed_answer(reading.analyse(("rollout", token, fusion), follow))


def of_relevance(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/relevance?token=&target=&id=&classes=``: values (N,), by_layer (L, N)."""
    kind = target_of(reading, request)
    token = token_of(reading, request) if "token" in request.query or kind == "word" else None
    highest = reading.model.spec.embedding.vocabulary - 1
    id = request.number("id", None, 0, highest) if "id" in request.query else None
    question = TargetQuery(kind, token, id, classes_of(request, len(reading)))

    def follow(view: AttentionView, watch: Watch) -> tuple[AttributionQuery, Attribution]:
        asked = ask(reading, view, question, watch)
        return asked, attribution(asked.cache, asked.target, encoder=plain_encoder(reading), watch=watch)

    asked, relevance = reading.analyse(("relevance", question), follow)
    arrays = {"values": relevance.values, "by_layer": relevance.by_layer}
    return array_answer(arrays, RelevanceMeta(token, kind, f"{asked.words}, by its {relevance.unit}"))


ROUTES = (
    Route.get(RolloutRequest, of_text(of_rollout)),
    Route.get(AttributionRequest, of_text(of_relevance)),
)
