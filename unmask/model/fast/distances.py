"""The table of distances as a layer sees it, computed once."""

from torch import Tensor, nn

from unmask.model.kernels import DistanceTerms, ScoreTerms


class FixedDistances(nn.Module):
    """`DistanceProjections` whose weights and table do not change any more."""

    keys_PHK: Tensor | None
    queries_PHK: Tensor | None

    def __init__(self, terms: ScoreTerms) -> None:
        super().__init__()
        assert terms.distances is not None
        self.position = terms.distances.position
        self.register_buffer("keys_PHK", terms.distances.keys_PHK, persistent=False)
        self.register_buffer("queries_PHK", terms.distances.queries_PHK, persistent=False)

    def forward(self, table_PD: Tensor, content: nn.Module, read: slice | None = None) -> ScoreTerms:
        """What the layer adds to scores, whatever the arguments."""
        return ScoreTerms(distances=DistanceTerms(self.position, self.keys_PHK, self.queries_PHK))
