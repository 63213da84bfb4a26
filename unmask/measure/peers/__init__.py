"""Others that run the same weights, one file a library. Adding one: its file, and a line here.

This is the one place that may import `transformers` and `sentence_transformers`, inside functions only:
to stand beside them is what it is for.
"""

from unmask.measure.peers.engine import Engine, Peer, Source
from unmask.measure.peers.onnx_runtime import ONNX_RUNTIME
from unmask.measure.peers.open_vino import OPENVINO
from unmask.measure.peers.ours import ours
from unmask.measure.peers.sentence_models import SENTENCE_TRANSFORMERS
from unmask.measure.peers.transformers_models import TRANSFORMERS

PEERS: tuple[Peer, ...] = (*TRANSFORMERS, SENTENCE_TRANSFORMERS, ONNX_RUNTIME, *OPENVINO)
"""All that are known; those that are not installed are reported so."""


def by_name(name: str) -> Peer:
    """A peer, or ours of a number format: "unmask float32"."""
    known = {peer.name: peer for peer in PEERS}
    return known[name] if name in known else ours(name.removeprefix("unmask "))


__all__ = ["PEERS", "Engine", "Peer", "Source", "by_name", "ours"]
