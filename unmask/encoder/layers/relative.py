"""Relative position biases: the table that layers share, as each of them adds it to its scores."""

from torch import Tensor, nn

from unmask.kernels import AttentionBias, RelativeBias
from unmask.spec import RelativePositionBias


class RelativeBiasTable(nn.Module):
    """A number for every bucket of distances and every head (Raffel et al. 2020)."""

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)

    def forward(self) -> Tensor:
        """Shape (P, H); the same for every layer of a forward pass."""
        return self.table.weight


class RelativeBiasTerms(nn.Module):
    """One layer's use of the table, which has no weights of its own."""

    def __init__(self, position: RelativePositionBias) -> None:
        super().__init__()
        self.position = position

    def forward(self, table_PH: Tensor, content: nn.Module, read: slice | None = None) -> AttentionBias:
        """The attention bias of this layer; the projection and the range of rows are ignored."""
        return AttentionBias(relative=RelativeBias(self.position, table_PH))
