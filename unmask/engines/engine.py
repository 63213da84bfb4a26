"""The interface for running packed batches, so that tasks do not depend on an implementation."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.spec import (
    EncoderSpec,
    MultiVector,
    PairScore,
    PooledVector,
    SparseVector,
)
from unmask.text.batch import PackedBatch

Layers = Literal["last", "all"]
"""Which hidden states: those of the last layer, or the embedding output and those of every layer."""

Floats = NDArray[np.floating[Any]]
"""float64 from an engine that computes in float64, float32 from any other."""


OUTPUTS: tuple[type, ...] = (PooledVector, MultiVector, SparseVector, PairScore)
"""The kinds of `CheckpointOutput` that an engine of one encoder computes."""


class Engine(Protocol):
    """An encoder with its weights that runs packed batches. Results are arrays on the host."""

    @property
    def spec(self) -> EncoderSpec:
        """The specification of the encoder. `logits` supports its heads."""

    @property
    def dtype(self) -> str:
        """The number format it computes in; ``int8`` if its linear layers do."""

    @property
    def device(self) -> str:
        """The torch name of the device that it computes on."""

    @property
    def outputs(self) -> tuple[type, ...]:
        """The kinds of `CheckpointOutput` that it computes."""

    def with_states(self, batch: PackedBatch) -> "Engine":
        """This engine after one pass: what it computes of sequences of the batch takes their states from it.

        So several tasks read one pass, each the texts that are its own.
        """

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """Hidden states, (T, D); for all layers (L + 1, T, D), the embedding's output first."""

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """Logits of the head with that role for the batch.

        Shape (T, C) for a token head, or (M, C) if M ``tokens`` of the batch are given; (S, C) for a
        sequence head. C is the vocabulary size for a masked-LM head, else the number of classes.
        """

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> NDArray[np.float32]:
        """One vector per sequence, (S, E); the first ``skipped`` tokens of each are not pooled."""

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """One vector for each of M ``tokens`` of the batch, (M, E)."""

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """The weight of each word of the vocabulary, (V,), sequence after sequence."""

    def static_weights(self) -> NDArray[np.float32]:
        """The weight of each word of the vocabulary, (V,), of a model that weights queries by a table."""
