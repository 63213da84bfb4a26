"""The layers of the encoder, each built from its part of the spec."""

from unmask.model.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.model.layers.block import Block, Plan
from unmask.model.layers.convolution import ConvolutionLayer
from unmask.model.layers.disentangled import DistanceTable
from unmask.model.layers.embedding import EmbeddingLayer
from unmask.model.layers.initialization import initialize
from unmask.model.layers.linear_attention import LinearMixer
from unmask.model.layers.parts import ACTIVATIONS, build_feedforward, build_norm
from unmask.model.layers.relative import RelativeBiasTable
from unmask.model.layers.rotary import apply_rotary

__all__ = [
    "ACTIVATIONS",
    "AttentionPlan",
    "Block",
    "ConvolutionLayer",
    "DistanceTable",
    "EmbeddingLayer",
    "LinearMixer",
    "Plan",
    "RelativeBiasTable",
    "SoftmaxMixer",
    "apply_rotary",
    "build_feedforward",
    "build_norm",
    "initialize",
]
