"""`sentence-transformers` as it is by default."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.measure.peers.engine import Peer, Source


class SentenceEngine:
    """A `SentenceTransformer`; it sorts by characters and takes 32 texts a batch."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        return np.asarray(self.model.encode(list(texts), show_progress_bar=False), dtype=np.float32)

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """It takes no ids."""
        raise InvalidRequest("sentence-transformers gives embeddings of texts, no states of ids")


def load(source: Source) -> SentenceEngine:
    """The folder as the library reads it."""
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
    (("sentence_transformers", "sentence-transformers"),),
    answers=("texts",),
)
