"""A chunk of running text, the unit in which tokens are stored and objectives read them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of running text, as ids without special tokens."""

    ids: NDArray[np.int64]
    document: int
    """Chunks of one document share this number."""
