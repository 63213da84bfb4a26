"""The tour's experiments: functions of an encoder and a text that return measured numbers."""

from unmask.explorer.experiments.blur import Blur, blur, evenness
from unmask.explorer.experiments.collapse import Collapse, collapse
from unmask.explorer.experiments.handshake import (
    Handshake,
    Pair,
    clearest_head,
    clearest_pair,
    content_token,
    handshake,
)
from unmask.explorer.experiments.matching import Matching, matching
from unmask.explorer.experiments.order import Shuffled, is_unordered, shuffled, swapped
from unmask.explorer.experiments.positions import (
    DistancePenalty,
    Parts,
    PositionTable,
    TurnedAlike,
    Twice,
    distance_penalty,
    parts,
    position_table,
    turned_alike,
    twice,
)
from unmask.explorer.experiments.prediction import MaskedPrediction, masked_prediction
from unmask.explorer.experiments.reach import Alternation, ReachAndEffect, alternation, reach_and_effect
from unmask.explorer.experiments.recorded_text import MOST_TOKENS, RecordedText, record_text
from unmask.explorer.experiments.scaling import (
    RandomProducts,
    TrainedProducts,
    random_products,
    trained_products,
)
from unmask.explorer.experiments.sinks import Sinks, sinks
from unmask.explorer.experiments.tiles import Tiled, tiled
from unmask.explorer.experiments.values import Values, values

__all__ = [
    "MOST_TOKENS",
    "Alternation",
    "Blur",
    "Collapse",
    "DistancePenalty",
    "Handshake",
    "MaskedPrediction",
    "Matching",
    "Pair",
    "Parts",
    "PositionTable",
    "RandomProducts",
    "ReachAndEffect",
    "RecordedText",
    "Shuffled",
    "Sinks",
    "Tiled",
    "TrainedProducts",
    "TurnedAlike",
    "Twice",
    "Values",
    "alternation",
    "blur",
    "clearest_head",
    "clearest_pair",
    "collapse",
    "content_token",
    "distance_penalty",
    "evenness",
    "handshake",
    "is_unordered",
    "masked_prediction",
    "matching",
    "parts",
    "position_table",
    "random_products",
    "reach_and_effect",
    "record_text",
    "shuffled",
    "sinks",
    "swapped",
    "tiled",
    "trained_products",
    "turned_alike",
    "twice",
    "values",
]
