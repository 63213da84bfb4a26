"""What a checkpoint is and what became of every tensor in it, as one typed value."""

from dataclasses import dataclass

from unmask.model.spec import EmbeddingHead, EncoderSpec
from unmask.model.weights.build import claims, parameter_count
from unmask.model.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class TensorFate:
    """One tensor of the checkpoint: claimed by one of ours, or ignored for a reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    ours: str | None
    reason: str | None


@dataclass(frozen=True)
class Inspection:
    """Everything `unmask inspect` shows."""

    name: str
    folder: str
    revision: str | None
    family: str
    spec: EncoderSpec
    parameter_count: int
    max_tokens: int | None
    tokenizer: str
    head: EmbeddingHead | None
    head_missing: str | None
    """Why there is no embedding head."""
    unread_config: tuple[str, ...]
    """Keys of config.json that nothing understands."""
    tensors: tuple[TensorFate, ...]


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Account for the whole checkpoint without loading its weights.

    Raises:
        TensorMismatch: a tensor is missing, has no place, or has another shape than the spec says.
    """
    fates = tuple(
        TensorFate(
            fate.name,
            checkpoint.tensors[fate.name].shape,
            checkpoint.tensors[fate.name].dtype,
            fate.ours,
            fate.reason,
        )
        for fate in claims(checkpoint).fates
    )
    head = checkpoint.head
    return Inspection(
        name=checkpoint.source.name,
        folder=str(checkpoint.source.folder),
        revision=checkpoint.source.revision,
        family=checkpoint.family.name,
        spec=checkpoint.spec,
        parameter_count=parameter_count(checkpoint.spec),
        max_tokens=checkpoint.max_tokens,
        tokenizer=checkpoint.tokenizer.description,
        head=head if isinstance(head, EmbeddingHead) else None,
        head_missing=head if isinstance(head, str) else None,
        unread_config=checkpoint.unread_config,
        tensors=fates,
    )
