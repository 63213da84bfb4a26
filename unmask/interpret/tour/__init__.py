"""The tour's experiments: functions of an encoder and a text that return measured numbers."""

from unmask.interpret.tour.alternation import Alternation, alternation
from unmask.interpret.tour.blur import Blur, blur, evenness
from unmask.interpret.tour.collapse import Collapse, collapse
from unmask.interpret.tour.handshake import Handshake, clearest_head, handshake
from unmask.interpret.tour.matching import Matching, matching
from unmask.interpret.tour.order import Shuffled, is_unordered, shuffled, swapped
from unmask.interpret.tour.pairs import Pair, clearest_pair, content_token
from unmask.interpret.tour.positions import (
    DistancePenalty,
    Parts,
    PositionTable,
    TurnedAlike,
    distance_penalty,
    parts,
    position_table,
    turned_alike,
)
from unmask.interpret.tour.prediction import MaskedPrediction, masked_prediction
from unmask.interpret.tour.reach import ReachAndEffect, reach_and_effect
from unmask.interpret.tour.recorded_text import MOST_TOKENS, RecordedText, record_text
from unmask.interpret.tour.scaling import RandomProducts, TrainedProducts, random_products, trained_products
from unmask.interpret.tour.sinks import Sinks, sinks
from unmask.interpret.tour.tiles import Tiled, tiled
from unmask.interpret.tour.twice import Twice, twice
from unmask.interpret.tour.values import Values, values

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
