"""Attention over packed tokens: defined once in `tile`, computed by interchangeable kernels."""

from unmask.model.kernels.choose import KERNELS, choose
from unmask.model.kernels.distances import DistanceTerms
from unmask.model.kernels.interface import Attended, Capability, Kernel, Need
from unmask.model.kernels.tile import ScoreTerms, Sight, Tile, alibi_slopes, allowed, probabilities, scores

__all__ = [
    "KERNELS",
    "Attended",
    "Capability",
    "DistanceTerms",
    "Kernel",
    "Need",
    "ScoreTerms",
    "Sight",
    "Tile",
    "alibi_slopes",
    "allowed",
    "choose",
    "probabilities",
    "scores",
]
