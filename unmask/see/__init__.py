"""Looking inside: attention and its statistics as numbers. Nothing here draws."""

from unmask.see.atlas import Atlas, measure_layer
from unmask.see.attention import RELATIONS, AttentionView, HeadSummary, TopEdges
from unmask.see.layer_atlas import CLASSES, LayerAtlas
from unmask.see.recording import Projected, Recording
from unmask.see.rows import LayerRows, RowBlock
from unmask.see.watch import Watch, unwatched

__all__ = [
    "CLASSES",
    "RELATIONS",
    "Atlas",
    "AttentionView",
    "HeadSummary",
    "LayerAtlas",
    "LayerRows",
    "Projected",
    "Recording",
    "RowBlock",
    "TopEdges",
    "Watch",
    "measure_layer",
    "unwatched",
]
