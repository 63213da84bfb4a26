"""Heads of the encoder: hidden states in, vectors or logits out."""

from unmask.encoder.heads.output import StaticWeights, build_output, token_vectors, word_weights
from unmask.encoder.heads.pooling import PoolerLayer, embed, pool
from unmask.encoder.heads.prediction_heads import ClassificationHead, MaskedLMHead, build_head

__all__ = [
    "ClassificationHead",
    "MaskedLMHead",
    "PoolerLayer",
    "StaticWeights",
    "build_head",
    "build_output",
    "embed",
    "pool",
    "token_vectors",
    "word_weights",
]
