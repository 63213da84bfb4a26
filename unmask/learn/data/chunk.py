"""A chunk of running text, as tokens on disk are cut into and as objectives read it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of running text, as ids without special tokens."""

    ids: NDArray[np.int64]
    document: int
    """Chunks of one document share this number."""
