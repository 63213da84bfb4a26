"""Interpretability: attention, its statistics, attribution and geometry, as numbers.

Names that need torch are imported when first used.
"""

from typing import TYPE_CHECKING

from unmask.interpret.head_summary import HeadSummary
from unmask.interpret.watch import Watch, unwatched
from unmask.lazy import lazy_names

if TYPE_CHECKING:
    from unmask.interpret.activation_cache import ActivationCache, Projected
    from unmask.interpret.attention import RELATIONS, AttentionView, TopKeys
    from unmask.interpret.rows import LayerRows, RowBlock
    from unmask.interpret.statistics.attention_statistics import AttentionStatistics, measure_layer
    from unmask.interpret.statistics.layer_statistics import CLASSES, LayerStatistics

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

__getattr__ = lazy_names(
    __name__,
    {
        "ActivationCache": "unmask.interpret.activation_cache",
        "AttentionStatistics": "unmask.interpret.statistics.attention_statistics",
        "AttentionView": "unmask.interpret.attention",
        "CLASSES": "unmask.interpret.statistics.layer_statistics",
        "LayerRows": "unmask.interpret.rows",
        "LayerStatistics": "unmask.interpret.statistics.layer_statistics",
        "Projected": "unmask.interpret.activation_cache",
        "RELATIONS": "unmask.interpret.attention",
        "RowBlock": "unmask.interpret.rows",
        "TopKeys": "unmask.interpret.attention",
        "measure_layer": "unmask.interpret.statistics.attention_statistics",
    },
)
