"""`unmask` itself, as loaded by `unmask.load`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.loaded import Model, load
from unmask.measure.peers.engine import Peer, Source


class OurEngine:
    """A loaded model as a `PeerEngine`."""

    def __init__(self, model: Model, source: Source) -> None:
        self.model, self.head = model, source.head

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        encodings = self.model.tokenize(texts, truncation="end")
        return self.model.embed_encodings(encodings, self.head, global_tokens="none")  # as in other libraries

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        (states,) = self.model.hidden_states([ids])
        return np.asarray(states, dtype=np.float32)


def ours(dtype: str) -> Peer:
    """The peer entry of `unmask` in a number format."""

    def start(source: Source) -> OurEngine:
        return OurEngine(load(source.folder, dtype=dtype, device=source.device), source)

    return Peer(f"unmask {dtype}", dtype, "unmask.load, packed", start, ours=True)
