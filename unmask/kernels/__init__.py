"""Attention over packed tokens, defined in `tile` and computed by interchangeable kernels."""

from unmask.kernels.choose import KERNELS, choose
from unmask.kernels.distances import DistanceBias, RelativeBias
from unmask.kernels.interface import AttentionOutput, AttentionRequest, Capability, Kernel
from unmask.kernels.tile import AttentionBias, MaskContext, Tile, alibi_slopes, allowed, probabilities, scores

__all__ = [
    "KERNELS",
    "AttentionBias",
    "AttentionOutput",
    "AttentionRequest",
    "Capability",
    "DistanceBias",
    "Kernel",
    "MaskContext",
    "RelativeBias",
    "Tile",
    "alibi_slopes",
    "allowed",
    "choose",
    "probabilities",
    "scores",
]
