"""What the views of pretraining return."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unmask.tasks.fill import Prediction
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.sentence_pairs import PairTask

Corruption = Literal["none", "masked", "random", "kept"]
"""What became of a token: it is no target; a target that became the mask token or another word, or that was
left as it is. A target whose random word is the word itself counts as kept."""


@dataclass(frozen=True)
class WatchedToken:
    """One token, special tokens included."""

    token: int
    """Its position among the tokens of the text."""
    id: int
    """-1 where the reader's words do not correspond to single original tokens."""
    piece: str
    """The vocabulary's spelling."""
    start: int
    """The offset of its first character in the text."""
    end: int
    """The offset after its last character."""
    corrupted_id: int
    """What the model reads instead; ``id`` itself where nothing was changed."""
    corrupted_piece: str


@dataclass(frozen=True)
class MaskedToken(WatchedToken):
    """One token of a text with masked tokens. The last five are None unless it is a target."""

    corruption: Corruption
    loss: float | None
    """-log p of the original token, in nats."""
    probability: float | None
    """p of the original token."""
    rank: int | None
    """The number of tokens that are more probable, plus 1."""
    frequency_loss: float | None
    """-log of the token's relative frequency, the loss of a model that knows no context."""
    predictions: tuple[Prediction, ...] | None
    """The most probable tokens, most probable first."""

    @property
    def target(self) -> bool:
        """Whether training would predict it."""
        return self.corruption != "none"


@dataclass(frozen=True)
class MaskedView:
    """One step of masked language modeling on a text."""

    seed: int
    epoch: int
    masking: MaskingSpec
    tokens: tuple[MaskedToken, ...]
    uniform_loss: float
    """Log of the vocabulary's size: the loss of a model that knows nothing, in nats."""

    @property
    def targets(self) -> tuple[MaskedToken, ...]:
        """The tokens that training would predict."""
        return tuple(token for token in self.tokens if token.target)

    @property
    def loss(self) -> float:
        """The mean over targets, in nats: the loss of training, without dropout."""
        return float(np.mean([target.loss for target in self.targets if target.loss is not None]))

    @property
    def frequency_loss(self) -> float:
        """The mean over the same targets of the loss by word frequency alone."""
        return float(
            np.mean([target.frequency_loss for target in self.targets if target.frequency_loss is not None])
        )

    @property
    def accuracy(self) -> float:
        """The share of targets that are the most probable token."""
        return float(np.mean([target.rank == 1 for target in self.targets]))


@dataclass(frozen=True)
class ReplacedToken(WatchedToken):
    """One token as a detector of replaced tokens judges it."""

    target: bool
    """Whether a generator was asked for a word here. A word sampled right is not replaced."""
    replaced: bool
    """Whether the detector reads another token than the original."""
    probability: float
    """The detector's probability that it is replaced."""
    loss: float
    """Binary cross-entropy, in nats."""


@dataclass(frozen=True)
class ReplacedView:
    """One step of replaced-token detection on a text."""

    seed: int
    epoch: int
    source: Literal["generator", "reader", "nothing"]
    """Who replaced tokens."""
    text: str
    """The text that was read, with the reader's replacements; offsets refer to it."""
    tokens: tuple[ReplacedToken, ...]

    @property
    def loss(self) -> float:
        """The mean over all tokens, special tokens included, as in training; in nats."""
        return float(np.mean([token.loss for token in self.tokens]))

    @property
    def share_replaced(self) -> float:
        """The share of tokens that are replaced."""
        return float(np.mean([token.replaced for token in self.tokens]))

    @property
    def constant_loss(self) -> float:
        """The smallest loss of one probability for all tokens: the entropy of the share, in nats."""
        share = self.share_replaced
        return float(-sum(p * np.log(p) for p in (share, 1 - share) if p > 0))

    @property
    def accuracy(self) -> float:
        """The share of tokens judged rightly at probability 0.5."""
        return float(np.mean([(token.probability > 0.5) == token.replaced for token in self.tokens]))

    @property
    def constant_accuracy(self) -> float:
        """The accuracy of the same answer for all tokens."""
        return max(self.share_replaced, 1 - self.share_replaced)


@dataclass(frozen=True)
class PairOrder:
    """What a sentence-pair head says of two texts in one order."""

    first: str
    second: str
    probability: float
    """That the second follows the first: in next-sentence prediction that it is the next one, in
    sentence-order prediction that they are in order."""


@dataclass(frozen=True)
class SentencePairView:
    """The predictions of the head for two texts in both orders, and for unrelated texts."""

    task: PairTask
    given: PairOrder
    swapped: PairOrder
    unrelated: tuple[PairOrder, ...]
    """The first text before sentences of books that have nothing to do with it: the baseline."""
    chance: float = 0.5
    """The share of pairs that follow each other in training."""

    @property
    def unrelated_probability(self) -> float:
        """The mean over the unrelated pairs."""
        return float(np.mean([pair.probability for pair in self.unrelated]))


@dataclass(frozen=True)
class EpochTargets:
    """Which tokens are predicted in epochs 1 to K under one kind of mask."""

    kind: Literal["static", "dynamic"]
    epochs: tuple[tuple[int, ...], ...]
    """The positions of the targets in each epoch."""
    ever: tuple[float, ...]
    """The share of the text's tokens that were predicted up to each epoch."""
    different: int
    """How many of the epochs' masks are different."""


@dataclass(frozen=True)
class MaskEpochs:
    """Static beside dynamic masks of one text."""

    seed: int
    rate: float
    static_masks: int
    first_token: int
    """The position of the first of the ``pieces`` among the tokens of the text, usually 0."""
    pieces: tuple[str, ...]
    """All tokens, special tokens included."""
    static: EpochTargets
    dynamic: EpochTargets
    expected: tuple[float, ...]
    """1 - (1 - rate)^k: the share of tokens that k independent masks predict at least once on average."""
