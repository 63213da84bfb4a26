"""The output that a checkpoint defines for a text: one of a few kinds."""

from dataclasses import dataclass
from typing import Literal, get_args

from unmask.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.model.spec.check import require_at_least
from unmask.model.spec.encoder import EncoderSpec
from unmask.model.spec.parts import Activation

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len"]
"""Pooling over a sequence's tokens: the mean, the first token, the maximum of each feature, or the sum
divided by the square root of the number of tokens."""

POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)


@dataclass(frozen=True)
class Dense:
    """A dense layer on a pooled vector or on each token's state, with an optional activation."""

    width: int
    bias: bool = True
    activation: Activation | None = None

    def __post_init__(self) -> None:
        require_at_least("Dense.width", self.width, 1)


@dataclass(frozen=True)
class PooledVector:
    """One vector per text: the last hidden states, pooled."""

    pooling: tuple[PoolingMode, ...] = ("mean",)
    """If there are several, their vectors are concatenated in this order."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm, as the last step."""
    projections: tuple[Dense, ...] = ()
    """Dense layers after pooling."""
    dimensions: int | None = None
    """Keep only the first N dimensions, if trained that way (Kusupati et al. 2022); None keeps all."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Prefixes of a text, by the name of their use, such as ``query``."""

    def __post_init__(self) -> None:
        if not isinstance(self.pooling, tuple) or not self.pooling:
            raise InvalidRequest(f"PooledVector.pooling is {self.pooling!r}; give a tuple of pooling modes")
        for mode in self.pooling:
            check_choice("pooling", mode, POOLING_MODES)
        if self.dimensions is not None:
            require_at_least("PooledVector.dimensions", self.dimensions, 1)

    def width(self, spec: EncoderSpec) -> int:
        """E, the width of one text's vector."""
        whole = self.projections[-1].width if self.projections else spec.width * len(self.pooling)
        return whole if self.dimensions is None else min(whole, self.dimensions)


@dataclass(frozen=True)
class MultiVector:
    """One vector per token, compared by late interaction (ColBERT, Khattab & Zaharia 2020)."""

    projections: tuple[Dense, ...] = ()
    normalize: bool = True

    def width(self, spec: EncoderSpec) -> int:
        """E, the width of one token's vector."""
        return self.projections[-1].width if self.projections else spec.width


@dataclass(frozen=True)
class SparseVector:
    """One weight per word of the vocabulary, most of them 0 (SPLADE, Formal et al. 2021)."""

    pooling: Literal["max", "sum"] = "max"
    """Pooling of ``log(1 + relu(logit))`` over a sequence's tokens."""

    def width(self, spec: EncoderSpec) -> int:
        """V, the size of the vocabulary."""
        return spec.embedding.vocabulary


@dataclass(frozen=True)
class PairScore:
    """Scores of how two texts relate, encoded together (a cross-encoder)."""

    labels: int = 1
    """1: a score of relevance."""

    def __post_init__(self) -> None:
        require_at_least("PairScore.labels", self.labels, 1)

    def width(self, spec: EncoderSpec) -> int:
        """The number of scores of one pair."""
        return self.labels


@dataclass(frozen=True)
class UnknownOutput:
    """The checkpoint does not define a supported output."""

    reason: str
    """The reason, as a sentence without its final period."""
    normalize: bool = False
    """Whether the folder asks for normalized vectors; applies to a pooling that the caller names."""

    def width(self, spec: EncoderSpec) -> int:
        """An unknown output has no width.

        Raises:
            InvalidRequest: always.
        """
        raise InvalidRequest(f"{self.reason}; name a pooling, for instance mean")


CheckpointOutput = PooledVector | MultiVector | SparseVector | PairScore | UnknownOutput
"""The output that a checkpoint defines for a text. Only `PooledVector` can be computed so far."""
