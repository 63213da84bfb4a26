"""What stands on an encoder in published checkpoints, as values: predictors of words and of classes."""

from dataclasses import dataclass
from typing import Literal

from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.model.spec.check import require_size
from unmask.model.spec.parts import Activation, Norm

Role = Literal["next_sentence", "sentence_order", "replaced", "sequence", "tokens", "span"]
"""What a classifier decides: whether the second segment follows the first (Devlin et al. 2019), whether
two segments are in order (Lan et al. 2020), which tokens were replaced (Clark et al. 2020), the class of
the text, the class of each token, or where an answer starts and ends."""

Reads = Literal["pooler", "first", "mean", "tokens", "tokens_and_first"]
"""The state a classifier reads: the pooler's, the first token's, the mean of all, every token's own, or
the sum of every token's own and the first token's."""

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""What a classifier's logits are: numbers, one class of several, or each class apart."""


@dataclass(frozen=True)
class Transform:
    """Dense layer to ``width``, activation, norm: what most heads do to a state first."""

    width: int
    activation: Activation
    norm: Norm | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        require_size("width of a head's transform", self.width)


@dataclass(frozen=True)
class ResidualTransform:
    """A layer's feed-forward part once more: dense layer to ``width``, activation, dense layer back to the
    encoder's width, added to the state, norm (BigBird's head for answers, Zaheer et al. 2020).
    """

    width: int
    activation: Activation
    norm: Norm

    def __post_init__(self) -> None:
        require_size("width of a head's transform", self.width)


@dataclass(frozen=True)
class MaskedLM:
    """Logits over the vocabulary for each token: transform, then the word embedding as a matrix.

    ``tied=False``: a matrix of its own. ``bias``: one number a word. ``own_bias``: a matrix of its own has
    a bias of its own too, which is the one added; the other is kept and saved again, as `transformers` has
    it in most classes. ``enhanced``: trained on the states of a decoder that knows absolute positions (He
    et al. 2021, `unmask.model.decoder`); a head of its own role.
    """

    transform: Transform | None
    tied: bool = True
    bias: bool = True
    enhanced: bool = False
    own_bias: bool = False

    def __post_init__(self) -> None:
        if self.own_bias and self.tied:
            raise UnknownArchitecture("a predictor of words has a bias of its own matrix, and no such matrix")


@dataclass(frozen=True)
class Classifier:
    """Logits of ``classes`` classes; one class is a single number, such as a score."""

    role: Role
    classes: int
    reads: Reads
    transform: Transform | ResidualTransform | None = None
    bias: bool = True
    input_norm: Norm | None = None
    """Of the state, before the transform."""
    labels: tuple[str, ...] | None = None
    """Names of the classes, in their order; None where they have none."""
    problem_type: ProblemType | None = None
    """The task of the logits; None where it is not said."""

    def __post_init__(self) -> None:
        require_size("classes", self.classes)
        if self.labels is not None and len(self.labels) != self.classes:
            raise InvalidRequest(f"a classifier has {len(self.labels)} labels and {self.classes} classes")


Head = MaskedLM | Classifier


def role_of(head: Head) -> str:
    """The name of a head among those of an encoder; ``masked`` (or ``enhanced``) for a predictor of words."""
    if isinstance(head, MaskedLM):
        return "enhanced" if head.enhanced else "masked"
    return head.role
