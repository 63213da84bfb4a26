"""What a folder says that its checkpoint gives."""

from dataclasses import dataclass

from unmask.spec import CheckpointOutput


@dataclass(frozen=True)
class FoundOutput:
    """The output that a folder defines, and where its weights are."""

    head: CheckpointOutput
    folders: tuple[str, ...] = ()
    """The folder of the weights of each of its layers; "" for the encoder's own files."""
