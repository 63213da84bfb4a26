"""Pool hidden states to one vector per sequence."""

import torch
from torch import Tensor, nn

from unmask.errors import InvalidRequest
from unmask.model.layers.parts import ACTIVATIONS
from unmask.model.spec import PooledVector, Pooler, PoolingMode
from unmask.text.batch import SequenceLayout


class PoolerLayer(nn.Module):
    """Dense layer and activation on each sequence's first token (Devlin et al. 2019)."""

    def __init__(self, spec: Pooler, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T, D) in, (S, D) out."""
        return self.activation(self.dense(pool(x_TD, layout, "cls")))


def pool(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode) -> Tensor:
    """One vector per sequence, shape (S, D): see `PoolingMode`. Special tokens are included.

    Half-precision states are pooled in float32; the result has the states' dtype.
    """
    return _pool_exactly(x_TD, layout, mode).to(x_TD.dtype)


def _pool_exactly(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode) -> Tensor:
    """`pool` in float32, or in float64 for float64."""
    exact = torch.promote_types(x_TD.dtype, torch.float32)
    if mode == "cls":
        return x_TD[torch.from_numpy(layout.offsets[:-1]).to(x_TD.device)].to(exact)
    lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
    if mode == "max":
        return torch.segment_reduce(x_TD.to(exact), "max", lengths=lengths_S)
    sums_SD = torch.segment_reduce(x_TD.to(exact), "sum", lengths=lengths_S)
    counts_S1 = lengths_S[:, None].to(sums_SD.dtype)
    return sums_SD / (counts_S1 if mode == "mean" else counts_S1.sqrt())


def embed(x_TD: Tensor, layout: SequenceLayout, head: PooledVector) -> Tensor:
    """Sentence embeddings as the checkpoint defines them, shape (S, E), in float32 at least.

    Raises:
        InvalidRequest: it has dense layers, which are not supported.
    """
    if head.projections:
        raise InvalidRequest("dense layers after pooling are not built; take a checkpoint without them")
    e_SE = torch.cat([_pool_exactly(x_TD, layout, mode) for mode in head.pooling], dim=-1)
    e_SE = e_SE[:, : head.dimensions]
    return torch.nn.functional.normalize(e_SE, dim=-1) if head.normalize else e_SE
