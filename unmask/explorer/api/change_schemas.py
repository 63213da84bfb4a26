"""The schemas of one model on two texts, answers and requests: what changes when a word is replaced, and the
attention between the texts of a pair."""

from dataclasses import dataclass

from unmask.explorer.api.page_request import Arrays, PageRequest
from unmask.explorer.api.word_schemas import OwnWord
from unmask.interpret.words.word_pairs import WordPair
from unmask.tasks.fill import Prediction


@dataclass(frozen=True)
class ClassChange:
    """The probability of a label of the model's classifier of texts, or the value of a regression."""

    label: str
    before: float
    after: float


@dataclass(frozen=True)
class TextChangeMeta:
    """Of ``change``: ``cosine`` (L + 1, P), the states of the P words that both texts have, level by level.

    ``pairs`` has every word of both texts in order, numbered as in `TextRead.words`. ``pooling``: how the
    embeddings, whose cosine is ``embedding_cosine``, are pooled.
    """

    before: str
    after: str
    pairs: tuple[WordPair, ...]
    embedding_cosine: float
    pooling: str
    classes: tuple[ClassChange, ...]


@dataclass(frozen=True)
class TextChangeRequest(PageRequest):
    """One model on two texts, aligned by their words."""

    path = "change/{before}/{after}"
    answer = Arrays[TextChangeMeta]

    before: str
    after: str


@dataclass(frozen=True)
class GlobalChangeMeta:
    """Of ``change/global``: ``before`` and ``after`` (L, H), the attention to ``tokens``, which became
    global, added up over them, mean over queries."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class GlobalChangeRequest(PageRequest):
    """One text with two choices of global tokens: what the new ones receive."""

    path = "change/{before}/{after}/global"
    answer = Arrays[GlobalChangeMeta]

    before: str
    after: str


@dataclass(frozen=True)
class HeadChangeMeta:
    """Of ``change/heads``: ``moved``, ``to_removed`` and ``to_inserted`` (L, H), see
    `unmask.interpret.attention.comparison.AttentionChange`; means over ``queries`` of the ``of`` words
    that attend."""

    queries: int
    of: int


@dataclass(frozen=True)
class HeadChangeRequest(PageRequest):
    """How much the attention of every head changed between two texts."""

    path = "change/{before}/{after}/heads"
    answer = Arrays[HeadChangeMeta]

    before: str
    after: str


@dataclass(frozen=True)
class ChangedPrediction:
    """A predicted word and its probability in both texts."""

    piece: str
    text: str
    id: int
    before: float
    after: float


@dataclass(frozen=True)
class PredictionChange:
    """Predictions at a token of the second text and its counterpart in the first, which are masked.

    ``predictions`` has the most likely words of either text and the two actual tokens, ``own_before`` and
    ``own_after``. ``same``: both texts have the same tokens once these two are masked, so nothing changes.
    """

    token_before: int
    token_after: int
    same: bool
    own_before: int
    own_after: int
    predictions: tuple[ChangedPrediction, ...]


@dataclass(frozen=True)
class PredictionChangeRequest(PageRequest):
    """What the model would predict at a token of the second text, and in the first at the token that stands
    for it, were they masked."""

    path = "change/{before}/{after}/fill"
    answer = PredictionChange
    needs = "can_fill"

    before: str
    after: str
    token: int
    top: int = 8


@dataclass(frozen=True)
class Guesses:
    """Words that the model predicts in place of the whole word of a token.

    ``own``: the actual word, if it is one token.
    """

    token: int
    own: OwnWord | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class GuessesRequest(PageRequest):
    """What the model would write in place of the word of a token, however many tokens it has."""

    path = "texts/{text}/guesses"
    answer = Guesses
    needs = "can_fill"

    text: str
    token: int
    top: int = 8


@dataclass(frozen=True)
class SegmentsRequest(PageRequest):
    """``shares`` (L, H, 2, 3): what each text of a pair attends to: the first, the second, special tokens."""

    path = "texts/{text}/segments"
    answer = Arrays[None]

    text: str
