"""The schemas of words, answers and requests: predictions, ablations, maps between words."""

from dataclasses import dataclass

from unmask.explorer.api.attention_schemas import Special, Target
from unmask.explorer.api.page_request import Arrays, PageRequest
from unmask.explorer.api.session_schemas import Word
from unmask.interpret.attention.pooled import Over
from unmask.interpret.attention.view import Weight
from unmask.interpret.effects.ablation import How
from unmask.interpret.words.vocabulary_fit import VocabularyFit
from unmask.tasks.fill import Prediction


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
class FillRequest(PageRequest):
    """What the model would predict at a token, were it masked."""

    path = "texts/{text}/fill"
    answer = Fill
    saved_in = ("words",)
    needs = "can_fill"

    text: str
    token: int
    top: int = 8


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
class LensRequest(PageRequest):
    """What the model would predict at a token after every level, were it masked."""

    path = "texts/{text}/lens"
    answer = Lens
    saved_in = ("words",)
    needs = "can_fill"

    text: str
    token: int
    top: int = 5


@dataclass(frozen=True)
class Ablation:
    """The ablation of one head. ``effect`` is before minus after, in ``unit``: positive if the head helped.

    ``what`` says in words what was measured; ``estimate`` is the first-order estimate, where there is one.
    """

    layer: int
    head: int
    token: int | None
    how: str
    what: str
    unit: str
    before: float
    after: float
    effect: float
    estimate: float | None


@dataclass(frozen=True)
class AblationRequest(PageRequest):
    """One head ablated; the first target that the model has, where none is given.

    Without a token, the effect on the embedding of the text.
    """

    path = "texts/{text}/ablate/{layer}/{head}"
    answer = Ablation

    text: str
    layer: int
    head: int
    token: int | None
    how: How
    target: Target | None = None


@dataclass(frozen=True)
class ImportanceMeta:
    """Of ``importance``: ``values`` (L, H), first-order estimates of what each head contributes, in the sign
    and unit of `Ablation.effect`; ``normalized``, their sizes divided by each layer's length (Michel et al.
    2019)."""

    token: int
    what: str
    unit: str


@dataclass(frozen=True)
class ImportanceRequest(PageRequest):
    """First-order estimates of what each head contributes, for the same targets as an ablation."""

    path = "texts/{text}/importance"
    answer = Arrays[ImportanceMeta]
    saved_in = ("words",)

    text: str
    token: int
    target: Target | None = None


@dataclass(frozen=True)
class WordsMeta:
    """Of ``words/{layer}/{head}``: values (W, W), rows and columns as `TextRead.words`. ``rule``: how tokens
    became words."""

    words: int
    weight: str
    rule: str


@dataclass(frozen=True)
class WordMapRequest(PageRequest):
    """The map of a head between words.

    ``special="hide"`` leaves out special tokens, and divides the rest of each row of tokens by its sum.
    ``over`` asks for the heads of the layer, or for all heads, as one map of tokens first.
    """

    path = "texts/{text}/words/{layer}/{head}"
    answer = Arrays[WordsMeta]

    text: str
    layer: int
    head: int
    weight: Weight = "raw"
    special: Special = "show"
    over: Over | None = None


@dataclass(frozen=True)
class Words:
    """The words of a text and the tokens of each."""

    words: tuple[Word, ...]


@dataclass(frozen=True)
class WordsRequest(PageRequest):
    """The words of a text."""

    path = "texts/{text}/words"
    answer = Words

    text: str


@dataclass(frozen=True)
class VocabularyRequest(PageRequest):
    """How well a model's vocabulary fits a text."""

    path = "texts/{text}/vocabulary"
    answer = VocabularyFit
    saved_in = ("tokens",)

    text: str
