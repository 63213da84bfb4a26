"""A layer's projected distance table, computed once."""

from torch import Tensor, nn

from unmask.kernels import AttentionBias, DistanceBias


class PrecomputedDistances(nn.Module):
    """`DistanceProjections` with fixed weights and table."""

    keys_PHK: Tensor | None
    queries_PHK: Tensor | None

    def __init__(self, bias: AttentionBias) -> None:
        super().__init__()
        assert bias.distances is not None
        self.position = bias.distances.position
        self.register_buffer("keys_PHK", bias.distances.keys_PHK, persistent=False)
        self.register_buffer("queries_PHK", bias.distances.queries_PHK, persistent=False)

    def forward(self, table_PD: Tensor, content: nn.Module, read: slice | None = None) -> AttentionBias:
        """The attention bias of the layer; the arguments are ignored."""
        return AttentionBias(distances=DistanceBias(self.position, self.keys_PHK, self.queries_PHK))
