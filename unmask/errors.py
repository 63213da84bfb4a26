"""All errors raised deliberately. Each message is one sentence with the value, the limit and the remedy.

UnmaskError
  TextError                 a text that cannot be read
    EmptyText               it has no words
    InvalidText             it is not Unicode text (undecodable bytes, a lone surrogate)
    TextTooLong             it has more tokens than the model reads
  CheckpointError           a checkpoint that cannot be used
    CheckpointNotFound      no such folder, package or hub id
    CorruptCheckpoint       one of its files is damaged or incomplete
    UnknownArchitecture     its config names an unsupported model or setting
    TensorMismatch          tensors missing, unexpected or of the wrong shape
    UnsafeCheckpoint        its weights are pickled Python objects
    HubError                the hub did not provide it
  CorruptIndex              one of an index's files is damaged or missing
  KernelError               no attention kernel supports the request
  InvalidRequest            an invalid argument
  MissingExtra              an optional package is not installed
  OutputError               a result could not be written
  NonFiniteResult           a computation produced infinity or NaN
  AccuracyLoss              a number format lowers a metric by more than was allowed
  OutOfMemory               the machine or its GPU ran out of memory
  ProcessLost               another process of a run has ended
  Cancelled                 the work was cancelled by its requester
"""

from typing import Any

LONGEST_VALUE = 80
"""Maximum number of characters of a value in an error message."""


def quoted(value: object) -> str:
    """The repr of a value for an error message; a long one is shortened."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({len(text):,} characters)"


class BeyondTraining(UserWarning):
    """A text is longer than any the model was trained on; it is processed, but quality is unknown."""


class UnmaskError(Exception):
    """Base of all deliberate errors; ``str(error)`` is one clear sentence."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own calls the class with the message alone, which fails where it takes more.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[UnmaskError], args: tuple[Any, ...], attributes: dict[str, Any]) -> UnmaskError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class TextError(UnmaskError):
    """A text that cannot be read."""


class EmptyText(TextError):
    """A text without a single word."""


class InvalidText(TextError):
    """A value that is not Unicode text."""


class TextTooLong(TextError):
    """A text of more tokens than the model reads.

    ``original_tokens`` and ``max_tokens`` (both with special tokens) are stored, so that a
    caller can offer to truncate the text.
    """

    def __init__(self, message: str, *, original_tokens: int, max_tokens: int) -> None:
        super().__init__(message)
        self.original_tokens = original_tokens
        self.max_tokens = max_tokens


class CheckpointError(UnmaskError):
    """A checkpoint that cannot be used."""


class CheckpointNotFound(CheckpointError):
    """No checkpoint under the given name."""


class CorruptCheckpoint(CheckpointError):
    """A damaged or incomplete file in a checkpoint folder."""


class UnknownArchitecture(CheckpointError):
    """An unsupported model type or setting."""


class TensorMismatch(CheckpointError):
    """Tensors missing, unexpected or of a different shape than the spec requires."""


class UnsafeCheckpoint(CheckpointError):
    """Weights stored as pickled Python objects, which could run code when opened."""


class HubError(CheckpointError):
    """The hub did not provide the checkpoint."""


class CorruptIndex(UnmaskError):
    """A damaged or missing file of an index of documents."""


class KernelError(UnmaskError):
    """No attention kernel supports the request."""


class InvalidRequest(UnmaskError):
    """An invalid argument."""


class MissingExtra(UnmaskError):
    """An optional package is not installed."""


class OutputError(UnmaskError):
    """A result could not be written."""


class NonFiniteResult(UnmaskError):
    """A computation produced infinity or NaN, which is never returned as a result."""


class AccuracyLoss(UnmaskError):
    """A number format that lowers a metric by more than was allowed."""


class OutOfMemory(UnmaskError):
    """The machine or its GPU ran out of memory."""


def not_finite(what: str, dtype: str) -> NonFiniteResult:
    """The error for a result that is not finite, with the likely cause in this number format.

    Args:
        what: the result, such as "the embedding of text 3".
        dtype: the number format of the weights; with or without the prefix ``torch.``.
    """
    if dtype.removeprefix("torch.") == "float16":
        return NonFiniteResult(
            f"{what} is not finite; float16 has no numbers above 65504, so use float32 or bfloat16"
        )
    return NonFiniteResult(
        f"{what} is not finite; the weights may be damaged, so download the checkpoint again or check it "
        "with: unmask inspect --verify"
    )


class ProcessLost(UnmaskError):
    """Another process of a distributed run has ended or was never found."""


class Cancelled(UnmaskError):
    """Work that was cancelled by its requester."""
