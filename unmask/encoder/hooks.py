"""Hook points inside the encoder: analysis can record tensors there without changing the computation."""

from collections.abc import Callable
from enum import Enum

from torch import Tensor


class HookPoint(Enum):
    """Where in the encoder a tensor was recorded. Each description gives its shape."""

    EMBEDDED = "embedded"
    """The first layer's input, (T, D); layer 0."""
    QUERY = "query"
    """Queries as used in the scores, after rotary positions if there are any, (T, H, K)."""
    KEY = "key"
    """Keys as used in the scores, (T, H, K)."""
    VALUE = "value"
    """Values, (T, H, K)."""
    MIXED = "mixed"
    """Values mixed by attention, before the output projection, (T, H, K)."""
    DISTANCE_KEY = "distance_key"
    """The distance table projected to keys in a disentangled layer, (P, H, K)."""
    DISTANCE_QUERY = "distance_query"
    """The distance table projected to queries in a disentangled layer, (P, H, K)."""
    RELATIVE_BIAS = "relative_bias"
    """The table of relative position biases, which layers share, (P, H)."""
    GLOBAL_QUERY = "global_query"
    """Queries of every token from the separate projection of global tokens, (T, H, K)."""
    GLOBAL_KEY = "global_key"
    """Keys of every token from the separate projection of global tokens, (T, H, K)."""
    LAYER = "layer"
    """A layer's output, (T, D)."""


Hook = Callable[[HookPoint, int, Tensor], None]
"""Called as ``hook(point, layer, tensor)`` during a forward pass; it must not change the tensor."""
