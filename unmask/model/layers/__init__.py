"""The bricks of the encoder, each built from its value in the spec."""

from unmask.model.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.model.layers.block import Block
from unmask.model.layers.embedding import EmbeddingLayer
from unmask.model.layers.parts import ACTIVATIONS, build_feedforward, build_norm
from unmask.model.layers.rotary import turn

__all__ = [
    "ACTIVATIONS",
    "AttentionPlan",
    "Block",
    "EmbeddingLayer",
    "SoftmaxMixer",
    "build_feedforward",
    "build_norm",
    "turn",
]
