"""Looking inside: attention and its statistics as numbers. Nothing here draws."""

from unmask.see.attention import RELATIONS, AttentionView, HeadSummary, TopEdges

__all__ = ["RELATIONS", "AttentionView", "HeadSummary", "TopEdges"]
