"""What one head does on one text, in a few numbers. Free of torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadSummary:
    """Summary of one head on one text."""

    layer: int
    head: int
    entropy_nats: float
    """Mean over queries."""
    entropy_share: float
    """Entropy as a share of the maximum over the allowed keys: 0 is one key, 1 is uniform."""
    distance_tokens: float
    """Mean distance from query to key."""
    sink_token: int
    """The token that receives the most attention."""
    sink_mass: float
    """The attention it receives, as a share of all queries' attention; uniform attention gives 1/N."""
    relation: str
    """The one of `unmask.interpret.attention.view.RELATIONS` that receives the most attention."""
    relation_mass: float
