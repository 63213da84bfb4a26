"""The layers of the encoder, each built from its part of the spec."""

from unmask.encoder.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.encoder.layers.block import Block, LayerInputs, Plan, initialize
from unmask.encoder.layers.embedding import EmbeddingLayer
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.parts import ACTIVATIONS, ConvolutionLayer, build_feedforward, build_norm
from unmask.encoder.layers.positions import DistanceTable, RelativeBiasTable, apply_rotary

__all__ = [
    "ACTIVATIONS",
    "AttentionPlan",
    "Block",
    "ConvolutionLayer",
    "DistanceTable",
    "EmbeddingLayer",
    "LayerInputs",
    "LinearMixer",
    "Plan",
    "RelativeBiasTable",
    "SoftmaxMixer",
    "apply_rotary",
    "build_feedforward",
    "build_norm",
    "initialize",
]
