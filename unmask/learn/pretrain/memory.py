"""Out of memory, said in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unmask.errors import OutOfMemory

REFUSED = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
"""What torch and the libraries below it say when an allocation is refused."""


@contextmanager
def memory_named(micro_tokens: int, device: torch.device) -> Iterator[None]:
    """Within it, an allocation that is refused is an error that names the setting to lower.

    Raises:
        OutOfMemory: the device or the machine has no memory left for a micro-batch of so many tokens.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(words in str(error) for words in REFUSED):
            raise
        where = "the GPU" if device.type == "cuda" else "the machine"
        raise OutOfMemory(
            f"{where} has no memory left for a micro-batch of {micro_tokens:,} tokens; lower "
            f"batch.micro_tokens, which is {micro_tokens}"
        ) from None
