"""What stands on an encoder in published checkpoints, as values: predictors of words and of classes."""

from dataclasses import dataclass
from typing import Literal

from unmask.model.spec.check import require_at_least
from unmask.model.spec.parts import Activation, Norm

Role = Literal["next_sentence", "sentence_order", "replaced", "sequence", "tokens", "span"]
"""What a classifier decides: whether the second segment follows the first (Devlin et al. 2019), whether
two segments are in order (Lan et al. 2020), which tokens were replaced (Clark et al. 2020), the class of
the text, the class of each token, or where an answer starts and ends."""

Reads = Literal["pooler", "first", "mean", "tokens"]
"""The state a classifier reads: the pooler's, the first token's, the mean of all, or every token's own."""


@dataclass(frozen=True)
class Transform:
    """Dense layer to ``width``, activation, norm: what most heads do to a state first."""

    width: int
    activation: Activation
    norm: Norm | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        require_at_least("width of a head's transform", self.width, 1)


@dataclass(frozen=True)
class MaskedLM:
    """Logits over the vocabulary for each token: transform, then the word embedding as a matrix.

    ``tied=False``: a matrix of its own. ``bias``: one number a word.
    """

    transform: Transform | None
    tied: bool = True
    bias: bool = True


@dataclass(frozen=True)
class Classifier:
    """Logits of ``classes`` classes; one class is a single number, such as a score."""

    role: Role
    classes: int
    reads: Reads
    transform: Transform | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        require_at_least("classes", self.classes, 1)


Head = MaskedLM | Classifier


def role_of(head: Head) -> str:
    """The name of a head among those of an encoder; ``masked`` for a predictor of words."""
    return "masked" if isinstance(head, MaskedLM) else head.role
