"""Heads over a corpus: its state, statistics of all heads, examples of one; similar heads of a text."""

from dataclasses import dataclass

from unmask.explorer.api.binary import array_answer
from unmask.explorer.api.corpus_schemas import (
    AlikeRequest,
    CorpusFindRequest,
    CorpusFound,
    CorpusHead,
    CorpusHeadRequest,
    CorpusHeadsMeta,
    CorpusHeadsRequest,
    CorpusRequest,
    PatternExamples,
)
from unmask.explorer.routes.compare import MOST_PAIRS
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.models import ModelSlot
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.errors import Refused, cannot
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.interpret import AttentionView, Watch
from unmask.interpret.attention.head_distances import HeadDistances, head_distances
from unmask.interpret.attention.layer_statistics import CLASSES
from unmask.interpret.attention.taxonomy import LABELS
from unmask.interpret.corpus.measure import CorpusStatistics
from unmask.interpret.corpus.patterns import PATTERNS
from unmask.interpret.corpus.search import find_examples
from unmask.interpret.corpus.texts import MOST_TEXTS

SHOWN = 12
"""Examples of each pattern in an answer."""
LONGEST_WORDS = 60
"""Characters of the words that are searched for."""


@dataclass(frozen=True)
class _Head:
    place: ModelSlot
    layer: int
    head: int


def state(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}``."""
    return json_answer(context.corpora.state(_model(context, request).index))


def start(context: AppContext, request: Request) -> Answer:
    """``POST corpus/{model}``: start or resume."""
    return json_answer(context.corpora.start(_model(context, request).index))


def stop(context: AppContext, request: Request) -> Answer:
    """``DELETE corpus/{model}``: stop; what is found stays."""
    index = _model(context, request).index
    context.corpora.stop(index)
    return json_answer(context.corpora.state(index))


def heads(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/heads``."""
    found = _found(context, request, _model(context, request))
    arrays = {
        "entropy": found.entropy,
        "entropy_share": found.entropy_share,
        "distance": found.distance,
        "classes": found.classes,
        "labels": found.labels,
    }
    return array_answer(arrays, CorpusHeadsMeta(CLASSES, LABELS, found.totals.texts))


def head(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/head/{l}/{h}``."""
    one = _head(context, request)
    found = _found(context, request, one.place)
    patterns = tuple(
        PatternExamples(pattern, found.examples(one.layer, one.head, pattern, SHOWN)) for pattern in PATTERNS
    )
    return json_answer(CorpusHead(one.layer, one.head, found.totals.texts, patterns))


def find(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/find/{l}/{h}?pattern=&query_word=&key_word=``."""
    one = _head(context, request)
    pattern = request.choice("pattern", PATTERNS)
    words = [request.query.get(name, "").strip() or None for name in ("query_word", "key_word")]
    for word in words:
        if word is not None and len(word) > LONGEST_WORDS:
            raise cannot(f"the words have {len(word)} characters; give at most {LONGEST_WORDS}")
    statistics = context.corpora.found(one.place.index)

    def search(watch: Watch) -> CorpusFound:
        found = find_examples(
            one.place.need().encoder,
            statistics,
            one.layer,
            one.head,
            pattern=pattern,
            query=words[0],
            key=words[1],
            top=SHOWN,
            watch=watch,
        )
        return CorpusFound(pattern, found.matching, found.read, found.examples)

    key = ("corpus", one.place.index, one.layer, one.head, pattern, *words)
    return json_answer(context.analyses.once(key, search))


def alike(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/alike``."""
    count = sum(reading.described.heads)
    if count * count > MOST_PAIRS:
        raise cannot(f"{count:,} x {count:,} heads are more than one answer holds, so they are not compared")

    def measure(view: AttentionView, watch: Watch) -> HeadDistances:
        return head_distances(view.cache, watch=watch)

    return array_answer({"distance": reading.analyse(("alike",), measure).divergence})


def _found(context: AppContext, request: Request, place: ModelSlot) -> CorpusStatistics:
    """What is known so far, which is at least of the texts that the page knows to be done."""
    known = request.number("texts", 0, 0, MOST_TEXTS)
    found = context.corpora.found(place.index)
    if found.totals.texts < known:
        raise Refused(409, "NotReady", f"{found.totals.texts:,} texts are read so far, not {known:,}")
    return found


def _model(context: AppContext, request: Request) -> ModelSlot:
    return context.models.at(request.index(0, "model", len(context.models.places)))


def _head(context: AppContext, request: Request) -> _Head:
    place = _model(context, request)
    mixers = [layer.mixer for layer in place.need().spec.layers]
    layer = request.index(1, "layer", len(mixers))
    return _Head(place, layer, request.index(2, "head", mixers[layer].heads))


ROUTES = (
    Route.get(CorpusRequest, state),
    Route("POST", CorpusRequest.route(), start),
    Route("DELETE", CorpusRequest.route(), stop),
    Route.get(CorpusHeadsRequest, heads),
    Route.get(CorpusHeadRequest, head),
    Route.get(CorpusFindRequest, find),
    Route.get(AlikeRequest, of_text(alike)),
)
