"""Describe a checkpoint and the status of every tensor in it, as one typed value."""

from collections import Counter
from dataclasses import dataclass

from unmask.base.checksums import Verified
from unmask.spec import CheckpointOutput, EncoderSpec, MaskedLM, UnknownOutput
from unmask.spec.encoder import why_no_decoder
from unmask.spec.shapes import parameter_count
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import report_tensors

ENHANCED = (
    "the enhanced mask decoder is not run, because {reason}: its head reads the encoder's last states, "
    "without absolute positions"
)


@dataclass(frozen=True)
class InspectedTensor:
    """One tensor of the checkpoint: used by one of ours, or ignored for a reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    ours: str | None
    reason: str | None


@dataclass(frozen=True)
class Inspection:
    """Everything that `unmask inspect` shows."""

    name: str
    folder: str
    revision: str | None
    family: str
    spec: EncoderSpec
    parameter_count: int
    max_tokens: int | None
    tokenizer: str | None
    """The tokenizer's description; None if the folder has none."""
    head: CheckpointOutput | None
    head_missing: str | None
    """Why there is no embedding head."""
    trained_tokens: int | None
    """The longest training text, if longer ones can be read."""
    approximated: tuple[str, ...]
    """Differences from the authors' computation, one sentence each."""
    compat_differs: str | None
    """What ``compat="hf"`` changes for this family; None if nothing."""
    verified: Verified | None
    """What was compared with the folder's checksums; None if it has none."""
    unread_config: tuple[str, ...]
    """Unknown keys of config.json."""
    odd_dtypes: tuple[str, ...]
    """Used tensors whose number format differs from that of most of them."""
    tensors: tuple[InspectedTensor, ...]


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Account for the whole checkpoint without loading its weights.

    Raises:
        TensorMismatch: a tensor is missing, unexpected, or has a different shape than the spec requires.
    """
    statuses = tuple(
        InspectedTensor(
            status.name,
            checkpoint.tensors[status.name].shape,
            checkpoint.tensors[status.name].dtype,
            status.ours,
            status.reason,
        )
        for status in report_tensors(checkpoint).statuses
    )
    statuses += tuple(
        InspectedTensor(str(tensor.key), tensor.shape, tensor.dtype, ours, None)
        for ours, tensor in checkpoint.output_tensors.items()
    )
    head, tokenizer = checkpoint.head, checkpoint.stored_tokenizer
    return Inspection(
        name=checkpoint.source.name,
        folder=str(checkpoint.source.folder),
        revision=checkpoint.source.revision,
        family=checkpoint.family.name,
        spec=checkpoint.spec,
        parameter_count=parameter_count(checkpoint.spec),
        max_tokens=checkpoint.max_tokens,
        head=None if isinstance(head, UnknownOutput) else head,
        head_missing=f"{head.reason}; name a pooling" if isinstance(head, UnknownOutput) else None,
        tokenizer=None if tokenizer is None else tokenizer.description,
        trained_tokens=checkpoint.trained_tokens,
        approximated=_approximated(checkpoint.spec),
        compat_differs=checkpoint.family.hf_difference or None,
        verified=checkpoint.verified,
        unread_config=checkpoint.unread_config,
        odd_dtypes=_odd_dtypes(statuses),
        tensors=statuses,
    )


def _odd_dtypes(tensors: tuple[InspectedTensor, ...]) -> tuple[str, ...]:
    counted = Counter(tensor.dtype for tensor in tensors if tensor.ours is not None)
    usual = counted.most_common(1)[0][0]
    return tuple(tensor.name for tensor in tensors if tensor.ours is not None and tensor.dtype != usual)


def _approximated(spec: EncoderSpec) -> tuple[str, ...]:
    enhanced = any(isinstance(head, MaskedLM) and head.enhanced for head in spec.heads)
    reason = why_no_decoder(spec)
    return (ENHANCED.format(reason=reason),) if enhanced and reason else ()
