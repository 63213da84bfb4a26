"""What stands on the encoder: tensors in, vectors or logits out."""

from unmask.model.heads.pooling import PoolerLayer, embed, pool
from unmask.model.heads.predictors import ClassPredictor, MaskedPredictor, build_head

__all__ = ["ClassPredictor", "MaskedPredictor", "PoolerLayer", "build_head", "embed", "pool"]
