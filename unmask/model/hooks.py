"""Named places inside the encoder where analysis may listen, without changing what it computes."""

from collections.abc import Callable
from enum import Enum

from torch import Tensor


class HookPoint(Enum):
    """Where a tensor was when a tap heard it. Its shape is in the description."""

    EMBEDDED = "embedded"
    """The first layer's input, (T, D); layer 0."""
    QUERY = "query"
    """Queries as the scores see them, turned by rotary positions if there are any, (T, H, K)."""
    KEY = "key"
    """Keys likewise, (T, H, K)."""
    VALUE = "value"
    """Values, (T, H, K)."""
    MIXED = "mixed"
    """Values mixed by attention, before the output projection, (T, H, K)."""
    DISTANCE_KEY = "distance_key"
    """The table of distances as keys of a disentangled layer, (P, H, K)."""
    DISTANCE_QUERY = "distance_query"
    """The table of distances as queries of a disentangled layer, (P, H, K)."""
    GLOBAL_QUERY = "global_query"
    """Queries of every token by the projection that global tokens attend through, (T, H, K)."""
    GLOBAL_KEY = "global_key"
    """Keys likewise, (T, H, K)."""
    LAYER = "layer"
    """A layer's output, (T, D)."""


Hook = Callable[[HookPoint, int, Tensor], None]
"""Called as ``tap(place, layer, tensor)`` during a forward pass; it must not change the tensor."""
