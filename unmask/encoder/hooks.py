"""Hook points inside the encoder: a tensor can be recorded there, or replaced."""

from collections.abc import Callable
from enum import Enum

from torch import Tensor


class HookPoint(Enum):
    """Where in the encoder a hook is called. Each description gives the tensor's shape.

    What a hook returns takes the tensor's place, except for tables and global projections, which are only
    recorded.
    """

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
    ATTENTION = "attention"
    """The attention output after the output projection, before its residual, (T, D)."""
    FEEDFORWARD = "feedforward"
    """The feed-forward output, before its residual, (T, D). Compiled layers do not call hooks here."""
    LAYER = "layer"
    """A layer's output, (T, D)."""


Hook = Callable[[HookPoint, int, Tensor], Tensor | None]
"""Called as ``hook(point, layer, tensor)`` during a forward pass; it returns a tensor of the same shape to go
on with in its place, or None. It must not change the tensor that it is given."""


def hooked(hook: Hook | None, point: HookPoint, layer: int, tensor: Tensor) -> Tensor:
    """The tensor, or what the hook returns in its place."""
    other = None if hook is None else hook(point, layer, tensor)
    return tensor if other is None else other
