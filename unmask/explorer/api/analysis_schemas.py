"""The schemas of the other analyses, answers and requests: two models, geometry, scaling, the tour."""

from dataclasses import dataclass
from typing import Literal

from unmask.explorer.api.page_request import Arrays, PageRequest
from unmask.explorer.api.session_schemas import Json
from unmask.http.errors import Problem
from unmask.interpret.geometry.projection import Basis, Method
from unmask.interpret.geometry.values import LayerGeometry
from unmask.interpret.geometry.word_senses import SenseReport


@dataclass(frozen=True)
class Aligned:
    """Characters ``start`` to ``end`` and the tokens of both texts that hold them (half-open ranges)."""

    start: int
    end: int
    in_pair: bool
    a: tuple[int, int]
    b: tuple[int, int]


@dataclass(frozen=True)
class HeadMatch:
    """A head of the first model and the most similar head of the second."""

    a_layer: int
    a_head: int
    b_layer: int
    b_head: int
    jsd: float


@dataclass(frozen=True)
class CompareMeta:
    """Of ``compare``. ``cka`` is (levels of a, levels of b), ``distance`` (heads of a, heads of b), heads
    counted layer by layer, or absent where ``no_distance`` says why."""

    a: str
    b: str
    alignment: tuple[Aligned, ...]
    matches: tuple[HeadMatch, ...]
    cka_n: int
    cka_note: str
    no_distance: str | None


@dataclass(frozen=True)
class CompareRequest(PageRequest):
    """One text in two models."""

    path = "compare/{a}/{b}"
    answer = Arrays[CompareMeta]

    a: str
    b: str


@dataclass(frozen=True)
class Geometry:
    """The shape of every level's cloud of tokens, special ones left out; level 0 is the embeddings.

    ``random`` is the same text in an encoder of the same design with random weights, where that was asked
    for; ``problem`` says why there is nothing, for instance because the text is too short.
    """

    tokens: int
    levels: tuple[LayerGeometry, ...]
    random: tuple[LayerGeometry, ...] | None
    problem: Problem | None


@dataclass(frozen=True)
class GeometryRequest(PageRequest):
    """The geometry of every level, with that of a random baseline where it is asked for."""

    path = "texts/{text}/geometry"
    answer = Geometry
    saved_in = ("geometry",)

    text: str
    random: Literal["no", "yes"] = "no"


@dataclass(frozen=True)
class Senses:
    """The senses of a word in one model; ``available`` lists the words with example sentences."""

    model: str
    word: str
    available: tuple[str, ...]
    report: SenseReport


@dataclass(frozen=True)
class SensesRequest(PageRequest):
    """The senses of a word in one model; ``model`` is its number."""

    path = "bank"
    answer = Senses
    saved_in = ("geometry",)

    model: int
    word: str = "bank"


@dataclass(frozen=True)
class CloudMeta:
    """Of a cloud of points (levels, N, 3) around the mean of those fitted, with explained (levels, 3), the
    shares of variance along the axes, unless UMAP made it."""

    method: str
    basis: str
    fitted: int


@dataclass(frozen=True)
class CloudRequest(PageRequest):
    """All tokens in three dimensions at every level; special ones do not determine the directions."""

    path = "texts/{text}/cloud"
    answer = Arrays[CloudMeta]
    saved_in = ("geometry",)

    text: str
    method: Method = "pca"
    basis: Basis = "own"


@dataclass(frozen=True)
class ReceivedRequest(PageRequest):
    """Mean attention (L, N) that each token receives, over the heads of a layer; 0 where not measured."""

    path = "texts/{text}/received"
    answer = Arrays[None]
    grows = True
    saved_in = ("geometry",)

    text: str


@dataclass(frozen=True)
class Occurrence:
    """One sentence with the word at ``start`` to ``end``, counted in code points; ``sense`` is a number."""

    text: str
    start: int
    end: int
    sense: int


@dataclass(frozen=True)
class SenseCloudMeta:
    """Of the cloud of a word's occurrences: arrays as in `CloudMeta`, one point per sentence."""

    model: str
    word: str
    senses: tuple[str, ...]
    sentences: tuple[Occurrence, ...]
    method: str
    basis: str


@dataclass(frozen=True)
class SenseCloudRequest(PageRequest):
    """The occurrences of a word in three dimensions at every level; ``model`` is its number."""

    path = "bank/cloud"
    answer = Arrays[SenseCloudMeta]
    saved_in = ("geometry",)

    model: int
    word: str = "bank"
    method: Method = "pca"
    basis: Basis = "shared"


@dataclass(frozen=True)
class Underway:
    """An analysis in progress. ``name``: which one, as the server calls it; ``what``: its present stage, of
    which ``done`` of ``total`` steps are done; ``eta_s``: the seconds left of it, None until known."""

    name: str
    phase: str
    what: str
    done: int
    total: int
    seconds: float
    eta_s: float | None


@dataclass(frozen=True)
class UnderwayList:
    """The analyses in progress of a text, or of no text."""

    analyses: tuple[Underway, ...]


@dataclass(frozen=True)
class TextAnalysesRequest(PageRequest):
    """The analyses of a text that are in progress."""

    path = "texts/{text}/analyses"
    answer = UnderwayList

    text: str


@dataclass(frozen=True)
class AnalysesRequest(PageRequest):
    """The analyses in progress that belong to no single text."""

    path = "analyses"
    answer = UnderwayList


@dataclass(frozen=True)
class WallState:
    """The length-scaling measurement. ``phase``: none, waiting, running, done, stopped or failed; ``eta_s``:
    what is left of the seconds given; ``ways``: the kernels and libraries that may be asked for. ``points``
    are those measured so far and ``report`` is the final report, both as in ``unmask scaling --json``."""

    phase: str
    what: str
    done: int
    total: int
    seconds: float
    eta_s: float | None
    problem: Problem | None
    ways: tuple[str, ...]
    points: Json
    report: Json


@dataclass(frozen=True)
class WallRequest(PageRequest):
    """How far the length-scaling measurement is."""

    path = "wall"
    answer = WallState
    saved_in = ("wall",)


@dataclass(frozen=True)
class TourRequest(PageRequest):
    """The chapters of the tour."""

    path = "tour"
    answer = Json
    saved_in = ("tour",)


@dataclass(frozen=True)
class ChapterRequest(PageRequest):
    """The experiments of a chapter on a text; ``model`` is the number of the preferred one."""

    path = "tour/{chapter}"
    answer = Json

    chapter: str
    model: int
    text: str
    layer: int | None = None
    head: int | None = None
    token: int | None = None
