"""Every error raised on purpose. Each message is one sentence: the value, the limit, the way out.

UnmaskError
  TextError                 a text that cannot be read
    EmptyText               it has no words
    InvalidText             it is not Unicode text (undecodable bytes, a lone surrogate)
    TextTooLong             it has more tokens than the model reads
  CheckpointError           a checkpoint that cannot be used as it is
    CheckpointNotFound      no such folder, package or hub id
    CorruptCheckpoint       a file of it is damaged or incomplete
    UnknownArchitecture     its config names a model or a setting that is not built here
    TensorMismatch          tensors missing, unexpected or of another shape
    UnsafeCheckpoint        its weights are pickled Python objects
    HubError                the hub did not give it
  KernelError               no attention kernel can do what was asked
  InvalidRequest            an argument outside its range
  MissingExtra              an optional package is not installed
  OutputError               a result could not be written
  NonFiniteResult           a computation gave infinity or not-a-number
  OutOfMemory               the machine or its GPU has no memory left for it
  ProcessLost               another process of a run has ended
  Cancelled                 whoever asked for it wants it no more
"""

LONGEST_VALUE = 80
"""Characters of a value that a sentence repeats."""


def quoted(value: object) -> str:
    """A value as a sentence repeats it: as Python writes it, and only the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({len(text):,} characters)"


class BeyondTraining(UserWarning):
    """A text is longer than any the model was trained on; it is read, and how well is not known."""


class UnmaskError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one clear sentence."""


class TextError(UnmaskError):
    """A text that cannot be read."""


class EmptyText(TextError):
    """A text without a single word."""


class InvalidText(TextError):
    """A value that is not Unicode text."""


class TextTooLong(TextError):
    """A text of more tokens than the model reads.

    ``original_tokens`` and ``max_tokens`` (both with special tokens) are kept, so that a caller can
    offer to cut the text.
    """

    def __init__(self, message: str, *, original_tokens: int, max_tokens: int) -> None:
        super().__init__(message)
        self.original_tokens = original_tokens
        self.max_tokens = max_tokens


class CheckpointError(UnmaskError):
    """A checkpoint that cannot be used as it is."""


class CheckpointNotFound(CheckpointError):
    """No checkpoint under the given name."""


class CorruptCheckpoint(CheckpointError):
    """A damaged or incomplete file in a checkpoint folder."""


class UnknownArchitecture(CheckpointError):
    """A model type or a setting that is not built here."""


class TensorMismatch(CheckpointError):
    """Tensors missing, unexpected or of another shape than the spec says."""


class UnsafeCheckpoint(CheckpointError):
    """Weights stored as pickled Python objects, which could run code when opened."""


class HubError(CheckpointError):
    """The hub did not give the checkpoint."""


class KernelError(UnmaskError):
    """No attention kernel can do what was asked."""


class InvalidRequest(UnmaskError):
    """An argument outside its range."""


class MissingExtra(UnmaskError):
    """An optional package is not installed."""


class OutputError(UnmaskError):
    """A result could not be written."""


class NonFiniteResult(UnmaskError):
    """A computation gave infinity or not-a-number, which never leaves as a result."""


class OutOfMemory(UnmaskError):
    """The machine or its GPU has no memory left for what was asked."""


def not_finite(what: str, dtype: str) -> NonFiniteResult:
    """The error for a result that is not finite, with the likely cause in this number format.

    Args:
        what: the result, such as "the embedding of text 3".
        dtype: the number format of the weights; with or without the name of torch before it.
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
    """Another process of a run that several share is gone, or was never found."""


class Cancelled(UnmaskError):
    """Work that was stopped because whoever asked for it wants it no more."""
