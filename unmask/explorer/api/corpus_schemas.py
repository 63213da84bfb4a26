"""The schemas of heads over a corpus, answers and requests. Paths begin with the number of a model.

``texts`` in a request is how many texts the page knows to be done: answers grow with it, and a path has one
answer. Characters are code points.
"""

from dataclasses import dataclass

from unmask.explorer.api.page_request import Arrays, PageRequest
from unmask.http.errors import Problem
from unmask.interpret.corpus.measure import Example


@dataclass(frozen=True)
class CorpusState:
    """How far a corpus is read by a model. ``phase``: none, waiting, running, done, stopped or failed.

    ``texts`` of ``total`` are in the answers, the first ``done`` are read. ``kept``: where results are kept
    for the next launch, or None, if they are not; ``note`` says why not. ``from_cache``: all were kept.
    """

    model: int
    name: str
    phase: str
    done: int
    texts: int
    total: int
    tokens: int
    truncated: int
    seconds: float
    eta_s: float | None
    from_cache: bool
    kept: str | None
    note: str | None
    problem: Problem | None


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
    """Means over the queries of all texts, (L, H), and the share of texts with each label, (L, H, B)."""

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
class CorpusFound:
    """The examples of a head with certain words: of ``matching`` texts that have them, ``read`` were read."""

    pattern: str
    matching: int
    read: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class CorpusFindRequest(PageRequest):
    """The examples of one head whose query, or key, is of a word."""

    path = "corpus/{model}/find/{layer}/{head}"
    answer = CorpusFound

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
