"""The overview of a text: findings about heads and states, then those that are measured by further runs."""

from dataclasses import dataclass

import numpy as np

from unmask.explorer.routes.attribution import TargetQuery, ask, is_mask, plain_encoder, written
from unmask.explorer.routes.route import AppContext, Route, of_text, token_of
from unmask.explorer.sessions.described import CAN_FILL
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, Refused, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.corpus.texts import MOST_TEXTS
from unmask.interpret.effects.target import Word
from unmask.interpret.overview.figures import ranked
from unmask.interpret.overview.finding import Finding, Names, Overview, quoted
from unmask.interpret.overview.overview import (
    EMBEDDING,
    attention_findings,
    looks_untrained,
    measured_findings,
)
from unmask.interpret.overview.states import decided_word


@dataclass(frozen=True)
class FindingsRequest(PageRequest):
    """What the model did with the text, from the layers that are measured: one sentence and figures each.

    They are ranked by the texts of the corpus that are read; ``compared`` of a finding says how many. The
    page gives in ``texts`` how many it knows to be read, or nothing: a path has one answer.
    """

    path = "texts/{text}/findings"
    answer = Overview
    grows = True
    saved_in = ("overview", "head")

    text: str
    texts: int | None = None


@dataclass(frozen=True)
class MeasuredFindingsRequest(PageRequest):
    """Findings that need the model to run again: ablated heads, a masked word, the similarity of layers.

    ``token`` is the word that is masked; None chooses the longest word of a single token.
    """

    path = "texts/{text}/findings/measured"
    answer = Overview

    text: str
    token: int | None = None


def findings(context: AppContext, request: Request) -> Answer:
    """``GET texts/{id}/findings?texts=``: of the layers that are measured so far, which may be none.

    Nothing waits for the corpus: what is not read yet is not compared with.
    """
    session = context.texts.get(request.parts[0])
    expected = request.number("texts", 0, 0, MOST_TEXTS)

    def find(view: AttentionView) -> Overview:
        # A layer may be added meanwhile: all of the answer is of these.
        statistics = session.statistics_now() or view.open_statistics()
        corpus = context.corpora.known(session.place.index)
        read = 0 if corpus is None else corpus.texts
        if read < expected:
            raise Refused(409, "NotReady", f"{read:,} texts are read so far, not {expected:,}")
        return attention_findings(view, statistics, corpus)

    return json_answer(session.ask(find))


def measured(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/findings/measured?token=``: about that word, where the model predicts words."""
    chosen = token_of(session, request) if "token" in request.query else None
    token = _masked_token(session, chosen) if _predicts(session) else None

    def spell(id: int) -> str:
        return written(session, id)

    def measure(view: AttentionView, watch: Watch) -> tuple[Finding, ...]:
        statistics = session.statistics_now()
        if statistics is not None and looks_untrained(attention_findings(view, statistics)):
            return ()
        kind = "embedding" if token is None else "word"
        query = ask(session, view, TargetQuery(kind, token), watch)
        what = quoted(spell(query.target.id)) if isinstance(query.target, Word) else EMBEDDING
        effects = measured_findings(
            query.cache, query.target, what, encoder=lambda: plain_encoder(session), watch=watch
        )
        if token is None:
            return effects
        return (*effects, *decided_word(query.cache, token, session.encoding, spell, watch=watch))

    results = session.analyse(("findings", token), measure)
    ready = sum(layer is not None for layer in session.layers)
    return json_answer(Overview(session.layer_count, ready, ranked(results)))


def _predicts(session: TextSession) -> bool:
    """Whether words can be masked and predicted."""
    heads = session.model.encoder.heads
    return any(role in heads for role in CAN_FILL) and session.model.tokenizer.mask_id is not None


def _masked_token(session: TextSession, chosen: int | None) -> int | None:
    """The token that is asked about: the one given, else the mask of the text, else its longest word.

    Special tokens are not words. Of words, those of a single token are asked about, of equally long ones the
    last. None if there is no such word.
    """
    encoding, words = session.encoding, session.words
    if chosen is not None and (not encoding.special[chosen] or is_mask(session, chosen)):
        return chosen
    masks = (at for at in range(len(session)) if is_mask(session, at))
    if (mask := next(masks, None)) is not None:
        return mask
    sizes, wordlike = np.bincount(words.of_token, minlength=len(words)), Names(encoding).wordlike
    single = np.flatnonzero(wordlike & (sizes == 1)).tolist()
    return max(
        ((len(words.surface(word)), int(words.first_tokens[word])) for word in single), default=(0, None)
    )[1]


ROUTES = (
    Route.get(FindingsRequest, findings),
    Route.get(MeasuredFindingsRequest, of_text(measured)),
)
