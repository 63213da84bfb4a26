"""The story of attention as experiments: functions of an encoder and a text that return measured numbers."""

from unmask.see.story.alternation import Alternation, alternation
from unmask.see.story.blur import Blur, blur, evenness
from unmask.see.story.collapse import Collapse, collapse
from unmask.see.story.handshake import Handshake, clearest_head, handshake
from unmask.see.story.listen import MOST_TOKENS, Heard, listen
from unmask.see.story.order import Shuffled, is_unordered, shuffled
from unmask.see.story.positions import (
    DistancePenalty,
    Parts,
    PositionTable,
    TurnedAlike,
    distance_penalty,
    parts,
    position_table,
    turned_alike,
)
from unmask.see.story.reach import ReachAndEffect, reach_and_effect
from unmask.see.story.scaling import RandomProducts, TrainedProducts, random_products, trained_products
from unmask.see.story.sinks import Sinks, sinks
from unmask.see.story.tiles import Tiled, tiled
from unmask.see.story.twice import Twice, twice

__all__ = [
    "MOST_TOKENS",
    "Alternation",
    "Blur",
    "Collapse",
    "DistancePenalty",
    "Handshake",
    "Heard",
    "Parts",
    "PositionTable",
    "RandomProducts",
    "ReachAndEffect",
    "Shuffled",
    "Sinks",
    "Tiled",
    "TrainedProducts",
    "TurnedAlike",
    "Twice",
    "alternation",
    "blur",
    "clearest_head",
    "collapse",
    "distance_penalty",
    "evenness",
    "handshake",
    "is_unordered",
    "listen",
    "parts",
    "position_table",
    "random_products",
    "reach_and_effect",
    "shuffled",
    "sinks",
    "tiled",
    "trained_products",
    "turned_alike",
    "twice",
]
