"""What stands on the encoder: tensors in, vectors or logits out."""

from unmask.model.heads.pooling import PoolerLayer, embed, pool

__all__ = ["PoolerLayer", "embed", "pool"]
