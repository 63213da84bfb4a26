"""The interface for running packed batches, so that tasks do not depend on an implementation."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.model.spec import (
    Classifier,
    EncoderSpec,
    Head,
    MultiVector,
    PairScore,
    PooledVector,
    SparseVector,
    role_of,
)
from unmask.text.batch import PackedBatch, SequenceLayout

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


def check_unpooled(layout: SequenceLayout, skipped: int) -> None:
    """Refuse to pool a text that has nothing besides a prompt of ``skipped`` tokens.

    Raises:
        InvalidRequest: a text has no token to pool.
    """
    if skipped and layout.lengths.min() <= skipped:
        raise InvalidRequest(f"a text has no token besides the {skipped} of its prompt; leave the prompt out")


def head_of(spec: EncoderSpec, role: str) -> Head:
    """The head with that role.

    Raises:
        InvalidRequest: the encoder has no such head.
    """
    heads = {role_of(head): head for head in spec.heads}
    if role not in heads:
        raise InvalidRequest(f"the encoder has no {role} head; it has: {', '.join(heads) or 'none'}")
    return heads[role]


def masked_lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the MLM head of an encoder that predicts masked words.

    Raises:
        InvalidRequest: the encoder has no such head, or its attention is causal.
    """
    require_both_directions(spec, name)
    return lm_role(spec, name)


def lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the head over the vocabulary: ``masked`` if there is one, else ``enhanced``.

    Raises:
        InvalidRequest: the encoder has neither.
    """
    roles = [role_of(head) for head in spec.heads]
    role = next((role for role in ("masked", "enhanced") if role in roles), None)
    if role is None:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its checkpoint holds no masked-LM head "
            f"(heads: {', '.join(roles) or 'none'}); use a checkpoint that was saved with one"
        )
    return role


def require_both_directions(spec: EncoderSpec, name: str = "the model") -> None:
    """Refuse an encoder that sees no later token: its logits at a token are those of the next one.

    Raises:
        InvalidRequest: the attention of all layers is causal.
    """
    if spec.causal:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its attention is causal (is_decoder in config.json), so it "
            "predicts the next token; use predict_tokens (unmask compare), or another checkpoint"
        )


def is_per_token(head: Head) -> bool:
    """Whether a head gives logits for every token, rather than for a sequence."""
    return not isinstance(head, Classifier) or head.reads in ("tokens", "tokens_and_first")


def logit_count(spec: EncoderSpec, head: Head) -> int:
    """C, the number of logits of one token or sequence."""
    return head.classes if isinstance(head, Classifier) else spec.embedding.vocabulary
