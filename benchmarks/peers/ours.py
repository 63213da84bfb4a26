"""`unmask` itself, as loaded by `unmask.load`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engine import Peer, PeerEngine, Source
from unmask.engines.native.library import library_reason

if TYPE_CHECKING:
    from unmask.models.load import Model


@dataclass(frozen=True)
class Variant:
    """One way of loading a model with `unmask.load`, measured in each number format."""

    name: str
    settings: str
    """How it is run, for people."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `unmask.load`."""


VARIANTS = (
    Variant("unmask", "unmask.load, packed"),
    Variant("unmask torch", "unmask.load(backend='torch'), packed", {"backend": "torch"}),
)
"""All ways; a line here adds a row for each number format to the benchmark."""


class OurEngine:
    """A loaded model as a `PeerEngine`."""

    def __init__(self, model: "Model", source: Source) -> None:
        self.model, self.head = model, source.head

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        encodings = self.model.tokenize(texts, truncation="end")
        return self.model.embed_encodings(encodings, self.head, global_tokens="none")  # as in other libraries

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        (states,) = self.model.hidden_states([ids])
        return np.asarray(states, dtype=np.float32)


def ours(dtype: str) -> list[Peer]:
    """The peer entries of `unmask` in a number format: `VARIANTS`, or the first where nothing is native."""
    only_torch = library_reason(dtype) is not None
    return [_peer(variant, dtype) for variant in (VARIANTS[:1] if only_torch else VARIANTS)]


def _peer(variant: Variant, dtype: str) -> Peer:
    def start(source: Source) -> PeerEngine:
        from unmask.models.load import load  # here, so that the start of another library does not include it

        model = load(source.folder, dtype=dtype, device=source.device, **variant.options)
        return OurEngine(model, source)

    return Peer(f"{variant.name} {dtype}", dtype, variant.settings, start, ours=True)
