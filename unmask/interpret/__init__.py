"""Interpretability: attention, its statistics, attribution and geometry, as numbers."""

from unmask.interpret.activation_cache import ActivationCache, Projected
from unmask.interpret.attention import RELATIONS, AttentionView, HeadSummary, TopKeys
from unmask.interpret.rows import LayerRows, RowBlock
from unmask.interpret.statistics.attention_statistics import AttentionStatistics, measure_layer
from unmask.interpret.statistics.layer_statistics import CLASSES, LayerStatistics
from unmask.interpret.watch import Watch, unwatched

__all__ = [
    "CLASSES",
    "RELATIONS",
    "ActivationCache",
    "AttentionStatistics",
    "AttentionView",
    "HeadSummary",
    "LayerRows",
    "LayerStatistics",
    "Projected",
    "RowBlock",
    "TopKeys",
    "Watch",
    "measure_layer",
    "unwatched",
]
