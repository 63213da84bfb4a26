"""What a question about one token is: the text it is asked of, and the number whose causes are looked for."""

from dataclasses import dataclass
from typing import get_args

import torch

from unmask.errors import InvalidRequest
from unmask.explorer.api.attention_schemas import Target
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.errors import cannot
from unmask.http.requests import Request
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.intervention.target import AttributionTarget, Class, Embedding, Word
from unmask.interpret.logit_lens import logit_lens
from unmask.model.decoder import word_role
from unmask.model.encoder import Encoder
from unmask.model.heads import ClassificationHead
from unmask.model.spec import PooledVector
from unmask.text.masking import masked

TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True)
class TargetQuery:
    """What a request asks of: the kind of target, a token (None: the whole text), a word's or class's id."""

    kind: str
    token: int | None
    id: int | None = None


@dataclass(frozen=True)
class AttributionQuery:
    """A target, the text in which it is asked, and both in words."""

    cache: ActivationCache
    target: AttributionTarget
    words: str


def plain_encoder(reading: TextSession) -> Encoder:
    """The text's model in modules that give gradients."""
    return reading.place.plain()


def need_predictor(reading: TextSession) -> None:
    """Refuse with a sentence unless the model predicts words and can be asked for one."""
    model = reading.model
    try:
        word_role(model.encoder, reading.place.name)
    except InvalidRequest as error:
        raise cannot(str(error)) from None
    if model.tokenizer.mask_id is None:
        raise cannot(f"the tokenizer of {reading.place.name} has no mask token, so no word can be asked for")


def is_mask(reading: TextSession, token: int) -> bool:
    """Whether the text has the mask there already."""
    return int(reading.encoding.ids[token]) == reading.model.tokenizer.mask_id


def masked_at(reading: TextSession, view: AttentionView, token: int, watch: Watch) -> ActivationCache:
    """The text with that token masked; kept for the next question about the same token."""
    if is_mask(reading, token):
        return view.cache
    found = reading.masked.get(token)
    if found is None:
        encoding = masked(reading.encoding, [token], reading.model.tokenizer, name=reading.place.name)
        found = ActivationCache.of(reading.model.encoder, encoding, watch=watch)
        # One at a time: each is as large as the text's own.
        reading.masked = {token: found}
    return found


def target_of(reading: TextSession, request: Request) -> str:
    """The kind of target that the query asks for, else the first that this model has."""
    roles = reading.model.encoder.heads
    words = "masked" in roles or "enhanced" in roles
    target = request.query.get("target") or ("word" if words else "embedding")
    request = Request(request.parts, {**request.query, "target": target})
    target = request.choice("target", TARGETS)
    if target == "word":
        need_predictor(reading)
    if target == "class" and not _classifiers(reading):
        raise cannot(f"{reading.place.name} has no classifier; ask for another target")
    return target


def ask(reading: TextSession, view: AttentionView, question: TargetQuery, watch: Watch) -> AttributionQuery:
    """The target of a question; without an id, the word that stands there, or the class that is predicted."""
    kind, token, id = question.kind, question.token, question.id
    if kind == "word":
        assert token is not None
        cache = masked_at(reading, view, token, watch)
        if id is None:
            id = _predicted(cache, token) if is_mask(reading, token) else int(reading.encoding.ids[token])
        words = f"the word “{_written(reading, id)}” at token {token}, which is masked"
        return AttributionQuery(cache, Word(token, id), words)
    if kind == "class":
        return _class(reading, view, token, id)
    if token is not None:
        name = reading.encoding.surface(token) or reading.encoding.pieces[token]
        return AttributionQuery(
            view.cache, Embedding(token=token), f"the last state of token {token}, “{name}”"
        )
    head = reading.model.checkpoint.head
    pooling = head.pooling if isinstance(head, PooledVector) else ("mean",)
    words = f"the text's embedding ({' and '.join(pooling)} of its tokens)"
    return AttributionQuery(view.cache, Embedding(pooling), words)


def _written(reading: TextSession, id: int) -> str:
    """A word of the vocabulary as people write it, without the marks of its tokenizer."""
    engine = reading.model.tokenizer.engine
    return engine.decode([id], skip_special_tokens=False).strip() or engine.id_to_token(id) or f"<{id}>"


def _classifiers(reading: TextSession) -> list[str]:
    heads = reading.model.encoder.heads
    return [role for role in heads if isinstance(heads[role], ClassificationHead)]


def _class(reading: TextSession, view: AttentionView, token: int | None, id: int | None) -> AttributionQuery:
    cache, role = view.cache, _classifiers(reading)[0]
    predictor = cache.encoder.heads[role]
    assert isinstance(predictor, ClassificationHead)
    by_token = predictor.spec.reads in ("tokens", "tokens_and_first")
    at = (token or 0) if by_token else None
    with torch.no_grad():
        logits = cache.encoder.logits(role, cache.final_ND, cache.batch.layout)
    chosen = int(logits[at or 0].argmax()) if id is None else id
    where = f" at token {at}" if by_token else ""
    return AttributionQuery(cache, Class(role, chosen, at), f"class {chosen} of the classifier {role}{where}")


def _predicted(cache: ActivationCache, token: int) -> int:
    return int(logit_lens(cache, [token], top_k=1).ids[0, -1, 0])
