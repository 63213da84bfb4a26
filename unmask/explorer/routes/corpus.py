"""Heads over a corpus: its state, statistics of all heads, examples of one; similar heads of a text.

Search in an index: what it holds, and the passages that it finds. Topics of the corpus, as a cloud.

Paths begin with the number of a model. ``texts`` in a request is how many texts the page knows to be done:
answers grow with it, and a path has one answer.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.explorer.routes.compare import MOST_PAIRS
from unmask.explorer.routes.route import MAX_LISTED, AppContext, Route, of_text
from unmask.explorer.sessions.background import CorpusState
from unmask.explorer.sessions.models import ModelSlot
from unmask.explorer.sessions.opened_index import SearchIndex, SearchRequest
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, Refused, cannot, json_answer
from unmask.interpret import AttentionView, Watch
from unmask.interpret.attention.head_distances import HeadDistances, head_distances
from unmask.interpret.attention.layer_statistics import CLASSES, LABELS
from unmask.interpret.corpus.batch import PATTERNS
from unmask.interpret.corpus.measure import CorpusStatistics, Example, FoundExamples, find_examples
from unmask.interpret.corpus.texts import MOST_TEXTS
from unmask.search.options import Mode, Unit
from unmask.search.topics import principal_components, topics_and_vectors
from unmask.spec import PooledVector

SHOWN = 12
"""Examples of each pattern in an answer."""
MOST_DRAWN_TEXTS = 5_000
"""Texts of the corpus whose topics are shown: its first ones, which are a sample of all."""
MOST_TOPICS = 100
RESAMPLES = 5
"""Bootstrap samples for the stability of topics."""
LONGEST_WORDS = 60
"""Characters of the words that are searched for."""


@dataclass(frozen=True)
class CorpusRequest(PageRequest):
    """How far the corpus is read."""

    path = "corpus/{model}"
    answer = CorpusState
    saved_in = ("head",)

    model: int


@dataclass(frozen=True)
class CorpusHeadsMeta:
    """Of ``heads`` of a corpus: what classes of keys and labels are called, and the texts in it."""

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    texts: int


@dataclass(frozen=True)
class CorpusHeadsRequest(PageRequest):
    """Means over the queries of all texts, (L, H), the share of texts with each label, (L, H, B), and
    ``label``: what each head is called, see `CorpusStatistics.label`."""

    path = "corpus/{model}/heads"
    answer = Arrays[CorpusHeadsMeta]

    model: int
    texts: int


@dataclass(frozen=True)
class PatternExamples:
    """The texts in which a head does one thing most, best first."""

    pattern: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class CorpusHead:
    """The examples of one head, by pattern."""

    layer: int
    head: int
    texts: int
    patterns: tuple[PatternExamples, ...]


@dataclass(frozen=True)
class CorpusHeadRequest(PageRequest):
    """The examples of one head."""

    path = "corpus/{model}/head/{layer}/{head}"
    answer = CorpusHead

    model: int
    layer: int
    head: int
    texts: int


@dataclass(frozen=True)
class CorpusFindRequest(PageRequest):
    """The examples of one head whose query, or key, is of a word."""

    path = "corpus/{model}/find/{layer}/{head}"
    answer = FoundExamples

    model: int
    layer: int
    head: int
    pattern: str = "edge"
    query_word: str | None = None
    key_word: str | None = None


@dataclass(frozen=True)
class AlikeRequest(PageRequest):
    """``distance`` (A, A): Jensen-Shannon divergence of all heads of a model on a text, layer by layer."""

    path = "texts/{text}/alike"
    answer = Arrays[None]
    saved_in = ("head",)

    text: str


@dataclass(frozen=True)
class TopicOfCorpus:
    """A topic: its best words, its texts, and how stable it is, see `unmask.search.topics.Topic`."""

    name: str
    size: int
    stability: float | None


@dataclass(frozen=True)
class TopicCloud:
    """Of the texts of a corpus: ``points`` (1, S, 3) along the three first principal components of their
    vectors, ``explained`` (3,), the shares of variance that these hold, and ``topic`` (S,), -1 for none.

    ``total``: texts of the corpus, of which the first ``len(texts)`` are shown.
    """

    corpus: str
    model: str
    topics: tuple[TopicOfCorpus, ...]
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    total: int
    adjusted_rand: float | None


@dataclass(frozen=True)
class CorpusTopicsRequest(PageRequest):
    """Clusters of the texts of the corpus by their vectors; ``topics`` is the number that k-means makes, or
    half as many as there are texts if that is less."""

    path = "corpus/{model}/topics"
    answer = Arrays[TopicCloud]

    model: int
    topics: int = 12


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
    statistics = _statistics(context, request, _model(context, request))
    layers, count = statistics.labels.shape[:2]
    called = [
        [LABELS.index(statistics.label(layer, head)[0]) for head in range(count)] for layer in range(layers)
    ]
    arrays: dict[str, NDArray[Any]] = {
        "entropy": statistics.entropy,
        "entropy_share": statistics.entropy_share,
        "distance": statistics.distance,
        "classes": statistics.classes,
        "labels": statistics.labels,
        "label": np.array(called, dtype=np.uint8),
    }
    return array_answer(arrays, CorpusHeadsMeta(CLASSES, LABELS, statistics.totals.texts))


def head(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/head/{l}/{h}``."""
    place = _head(context, request)
    statistics = _statistics(context, request, place.place)
    patterns = tuple(
        PatternExamples(pattern, statistics.examples(place.layer, place.head, pattern, SHOWN))
        for pattern in PATTERNS
    )
    return json_answer(CorpusHead(place.layer, place.head, statistics.totals.texts, patterns))


def topics(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/topics?topics=``: points, explained, topic."""
    place = _model(context, request)
    count = request.number("topics", 12, 2, MOST_TOPICS)

    def measure(watch: Watch) -> Answer:
        model, corpus = place.need(), context.corpora.corpus
        some = corpus.texts[:MOST_DRAWN_TEXTS]
        number = min(count, max(2, len(some) // 2))
        found, vectors_SE = topics_and_vectors(
            [text.text for text in some],
            model,
            topics=number,
            min_size=min(10, max(2, len(some) // (2 * number))),
            resamples=RESAMPLES,
            truncation="end",
            pooling=None if isinstance(model.checkpoint.head, PooledVector) else "mean",
            progress=lambda done, total: watch("texts", done, total),
        )
        points_S3, explained = principal_components(vectors_SE, 3)
        meta = TopicCloud(
            corpus.name,
            place.name,
            tuple(TopicOfCorpus(topic.name, topic.size, topic.stability) for topic in found.topics),
            tuple(text.text for text in some),
            tuple(text.source for text in some),
            len(corpus.texts),
            found.adjusted_rand,
        )
        labels = np.array([-1 if label is None else label for label in found.labels], dtype=np.int32)
        arrays: dict[str, NDArray[Any]] = {"points": points_S3[None], "explained": explained, "topic": labels}
        return array_answer(arrays, meta)

    return context.analyses.once(("topics", place.index, count), measure)


def find(context: AppContext, request: Request) -> Answer:
    """``GET corpus/{model}/find/{l}/{h}?pattern=&query_word=&key_word=``."""
    place = _head(context, request)
    pattern = request.choice("pattern", PATTERNS)
    words = [request.query.get(name, "").strip() or None for name in ("query_word", "key_word")]
    for word in words:
        if word is not None and len(word) > LONGEST_WORDS:
            raise cannot(f"the words have {len(word)} characters; give at most {LONGEST_WORDS}")
    statistics = context.corpora.statistics(place.place.index)

    def search(watch: Watch) -> FoundExamples:
        return find_examples(
            place.place.need().encoder,
            statistics,
            place.layer,
            place.head,
            pattern=pattern,
            query=words[0],
            key=words[1],
            top=SHOWN,
            watch=watch,
        )

    key = ("corpus", place.place.index, place.layer, place.head, pattern, *words)
    return json_answer(context.analyses.once(key, search))


def alike(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/alike``."""
    count = sum(session.described.heads)
    if count * count > MOST_PAIRS:
        raise cannot(f"{count:,} x {count:,} heads are more than one answer holds, so they are not compared")

    def measure(view: AttentionView, watch: Watch) -> HeadDistances:
        return head_distances(view.cache, watch=watch)

    return array_answer({"distance": session.analyse(("alike",), measure).divergence})


def _statistics(context: AppContext, request: Request, place: ModelSlot) -> CorpusStatistics:
    """The statistics so far; they cover at least the texts that the page knows to be done."""
    expected = request.number("texts", 0, 0, MOST_TEXTS)
    statistics = context.corpora.statistics(place.index)
    if statistics.totals.texts < expected:
        raise Refused(409, "NotReady", f"{statistics.totals.texts:,} texts are read so far, not {expected:,}")
    return statistics


def _model(context: AppContext, request: Request) -> ModelSlot:
    return context.models.at(request.index(0, "model", len(context.models.places)))


def _head(context: AppContext, request: Request) -> _Head:
    place = _model(context, request)
    mixers = [layer.mixer for layer in place.need().spec.layers]
    layer = request.index(1, "layer", len(mixers))
    return _Head(place, layer, request.index(2, "head", mixers[layer].heads))


MODES: tuple[Mode, ...] = get_args(Mode)
UNITS: tuple[Unit, ...] = get_args(Unit)
WHY: tuple[Literal["no", "shares", "yes"], ...] = ("no", "shares", "yes")


@dataclass(frozen=True)
class SearchIndexRequest(PageRequest):
    """What the index holds; asked again, it shows what was added since."""

    path = "index"
    answer = SearchIndex


def index(context: AppContext, request: Request) -> Answer:
    """``GET index``."""
    return json_answer(context.index.described())


def search(context: AppContext, request: Request) -> Answer:
    """``GET search?text=&k=&mode=&unit=&why=``."""
    query = SearchRequest(
        text=request.query.get("text", ""),
        k=request.number("k", 10, 1, MAX_LISTED),
        mode=request.choice("mode", MODES) if request.query.get("mode") else None,
        unit=request.choice("unit", UNITS),
        why=request.choice("why", WHY),
    )
    return json_answer(context.index.search(query))


ROUTES = (
    Route.get(CorpusTopicsRequest, topics),
    Route.get(CorpusRequest, state),
    Route("POST", CorpusRequest.route(), start),
    Route("DELETE", CorpusRequest.route(), stop),
    Route.get(CorpusHeadsRequest, heads),
    Route.get(CorpusHeadRequest, head),
    Route.get(CorpusFindRequest, find),
    Route.get(AlikeRequest, of_text(alike)),
    Route.get(SearchIndexRequest, index),
    Route.get(SearchRequest, search),
)
