"""Other libraries that run the same weights, one file each. To add one, add its file and a line here.

This is the only package that may import `transformers` and `sentence_transformers`, and only inside
functions, because it exists for comparison with them. Torch is imported by the other libraries alone, so that
the start of `unmask` can be measured.
"""

from typing import Any

from benchmarks.peers.engine import Peer, PeerEngine, Source
from benchmarks.peers.ours import ours

PEERS: tuple[Peer, ...]
"""All known peers; those not installed are reported as such."""


def __getattr__(name: str) -> Any:
    if name != "PEERS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from benchmarks.peers.onnx_runtime import ONNX_RUNTIME
    from benchmarks.peers.open_vino import OPENVINO
    from benchmarks.peers.sentence_models import SENTENCE_TRANSFORMERS
    from benchmarks.peers.transformers_models import TRANSFORMERS

    return (*TRANSFORMERS, SENTENCE_TRANSFORMERS, *ONNX_RUNTIME, *OPENVINO)


def by_name(name: str) -> Peer:
    """The peer with this name; "unmask float32" is `unmask` in that number format."""
    for peer in ours(name.rpartition(" ")[2]):
        if peer.name == name:
            return peer
    every: tuple[Peer, ...] = __getattr__("PEERS")
    return next(peer for peer in every if peer.name == name)


__all__ = ["PEERS", "Peer", "PeerEngine", "Source", "by_name", "ours"]
