"""`sentence-transformers` with its defaults."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engine import Peer, Source
from unmask.errors import InvalidRequest


class SentenceEngine:
    """A `SentenceTransformer`; it sorts texts by characters, in batches of 32."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        return np.asarray(self.model.encode(list(texts), show_progress_bar=False), dtype=np.float32)

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Not supported: the library does not accept ids."""
        raise InvalidRequest("sentence-transformers returns embeddings of texts, not states")


def load(source: Source) -> SentenceEngine:
    """Load the folder with the library."""
    import transformers
    from sentence_transformers import SentenceTransformer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return SentenceEngine(SentenceTransformer(str(source.folder), device=source.device))


SENTENCE_TRANSFORMERS = Peer(
    "sentence-transformers",
    "float32",
    "encode with its defaults",
    load,
    ("sentence_transformers",),
    answers=("texts",),
)
