"""Disentangled positions: the distance table that layers share, and each layer's projections of it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.lora import weight_of
from unmask.encoder.layers.parts import build_norm
from unmask.kernels import AttentionBias, DistanceBias
from unmask.kernels.distances import table_rows
from unmask.kernels.dropout import Dropout
from unmask.spec import Disentangled, SoftmaxAttention


def rows_read(position: Disentangled, longest: int) -> slice:
    """Rows of the table that texts of up to ``longest`` tokens can use, rounded so that few ranges occur."""
    farthest = (1 << max(longest - 1, 63).bit_length()) - 1
    first, last = table_rows(torch.tensor([-farthest, farthest], device="cpu"), position).tolist()
    return slice(first, last + 1)


class DistanceTable(nn.Module):
    """A vector for every distance from ``-span`` to ``span - 1`` (He et al. 2021), normalized (v2 and v3)."""

    def __init__(self, position: Disentangled, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * position.span, width)
        self.norm = build_norm(position.table_norm, width)

    def forward(self) -> Tensor:
        """Shape (P, D); the same for every layer of a forward pass."""
        table_PD: Tensor = self.norm(self.table.weight)
        return table_PD


class DistanceProjections(nn.Module):
    """One layer's projections of the table to keys and queries, separate or shared with content."""

    def __init__(self, spec: SoftmaxAttention, position: Disentangled, width: int) -> None:
        super().__init__()
        self.position = position
        self.heads = spec.heads
        self.inner = spec.heads * spec.head_width
        separate = not position.shared_projections
        self.key = self.query = None
        if separate and position.content_to_position:
            self.key = nn.Linear(width, self.inner, bias=position.position_key_bias)
        if separate and position.position_to_content:
            self.query = nn.Linear(width, self.inner)
        self.dropout = Dropout(position.table_dropout)

    def forward(self, table_PD: Tensor, content: nn.Linear, read: slice | None = None) -> AttentionBias:
        """The attention bias of this layer.

        Args:
            table_PD: the distance table.
            content: the layer's projection of content to queries, keys and values.
            read: the rows that this batch can use, see `rows_read`; the others are not computed and are 0.
                None computes all.
        """
        position, rows = self.position, len(table_PD)
        read = read or slice(0, rows)
        table_PD = self.dropout(table_PD)[read]
        keys_PHK = queries_PHK = None
        if position.content_to_position:
            keys_PHK = self._project(table_PD, self.key, content, 1)
        if position.position_to_content:
            queries_PHK = self._project(table_PD, self.query, content, 0)
        around = (0, 0, 0, 0, read.start, rows - read.stop)
        keys_PHK, queries_PHK = (
            table if table is None or len(table) == rows else functional.pad(table, around)
            for table in (keys_PHK, queries_PHK)
        )
        return AttentionBias(distances=DistanceBias(position, keys_PHK, queries_PHK))

    def _project(
        self, table_PD: Tensor, projection: nn.Linear | None, content: nn.Linear, part: int
    ) -> Tensor:
        if projection is None:
            rows = slice(part * self.inner, (part + 1) * self.inner)
            bias = None if content.bias is None else content.bias[rows]
            table = functional.linear(table_PD, weight_of(content)[rows], bias)
        else:
            table = projection(table_PD)
        return table.view(len(table), self.heads, -1)
