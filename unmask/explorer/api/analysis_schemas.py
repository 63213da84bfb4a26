"""The JSON schemas of the explorer's analyses; the basic ones are in `session_schemas`.

``web/src/api/types.ts`` is also generated from these.
"""

from dataclasses import dataclass

from unmask.explorer.api.session_schemas import Json
from unmask.http.errors import Failure, Problem
from unmask.interpret.geometry.values import (
    Estimate,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
)
from unmask.interpret.geometry.word_senses import Null, SenseLayer, SenseReport
from unmask.interpret.statistics.sinks import HeadSink, TokenSink
from unmask.interpret.words.vocabulary_fit import SplitWord, VocabularyFit
from unmask.tasks.fill import Prediction

PUBLISHED = (
    Problem,
    Failure,
    Estimate,
    HeadSink,
    LayerGeometry,
    Null,
    Prediction,
    ScaleEstimate,
    SenseLayer,
    SenseReport,
    Shuffled,
    SplitWord,
    TokenSink,
    VocabularyFit,
    WithoutDirections,
)
"""Results of other packages that are returned unchanged."""


@dataclass(frozen=True)
class RolloutMeta:
    """Of a rollout: values (L + 1, N), level 0 the embeddings, the last the token itself (None: all)."""

    token: int | None
    fusion: str


@dataclass(frozen=True)
class RelevanceMeta:
    """Of an attribution: values (N,), by_layer (L, N). ``target`` names the target."""

    token: int | None
    target: str
    words: str


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
class Ablation:
    """The ablation of one head. ``effect`` is before minus after, in ``unit``: positive if the head helped.

    ``what`` says in words what was measured; ``estimate`` is the first-order estimate, where there is one.
    """

    layer: int
    head: int
    token: int
    how: str
    what: str
    unit: str
    before: float
    after: float
    effect: float
    estimate: float | None


@dataclass(frozen=True)
class ImportanceMeta:
    """Of ``importance``: ``values`` (L, H), first-order estimates of what each head contributes, in the sign
    and unit of `Ablation.effect`; ``normalized``, their sizes divided by each layer's length (Michel et al.
    2019)."""

    token: int
    what: str
    unit: str


@dataclass(frozen=True)
class WordsMeta:
    """Of ``words/{layer}/{head}``: values (W, W), rows and columns as `TextRead.words`. ``rule``: how tokens
    became words."""

    words: int
    weight: str
    rule: str


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
class Senses:
    """The senses of a word in one model; ``available`` lists the words with example sentences."""

    model: str
    word: str
    available: tuple[str, ...]
    report: SenseReport


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
