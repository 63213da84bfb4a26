"""Interpretability: attention, its statistics, attribution and geometry, as numbers.

Names that need torch are imported when first used.
"""

from typing import TYPE_CHECKING

from unmask.base.optional import lazy_names
from unmask.base.progress import Watch, unwatched

if TYPE_CHECKING:
    from unmask.interpret.activation_cache import ActivationCache, Projected
    from unmask.interpret.attention.attention_statistics import AttentionStatistics, measure_layer
    from unmask.interpret.attention.layer_statistics import CLASSES, HeadSummary, LayerStatistics
    from unmask.interpret.attention.rows import LayerRows, RowBlock
    from unmask.interpret.attention.view import RELATIONS, AttentionView, TopKeys

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
        "unmask.interpret.activation_cache": ("ActivationCache", "Projected"),
        "unmask.interpret.attention.attention_statistics": ("AttentionStatistics", "measure_layer"),
        "unmask.interpret.attention.view": ("AttentionView", "RELATIONS", "TopKeys"),
        "unmask.interpret.attention.layer_statistics": ("CLASSES", "HeadSummary", "LayerStatistics"),
        "unmask.interpret.attention.rows": ("LayerRows", "RowBlock"),
    },
)
