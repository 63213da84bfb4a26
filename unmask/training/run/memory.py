"""Out-of-memory errors in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unmask.errors import OutOfMemory
from unmask.training.run.loop_settings import StepBatch

REFUSED = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
"""Messages of torch and the libraries below it when an allocation fails."""


@contextmanager
def memory_named(batch: StepBatch, device: torch.device) -> Iterator[None]:
    """Context in which a failed allocation raises an error that names the setting to lower.

    Raises:
        OutOfMemory: the device or the machine has too little memory for a micro-batch of this size.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(words in str(error) for words in REFUSED):
            raise
        where = "the GPU" if device.type == "cuda" else "the machine"
        raise OutOfMemory(
            f"{where} has no memory left for a micro-batch of {batch.micro_size}; {batch.smaller}"
        ) from None
