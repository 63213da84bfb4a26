"""Positions as layers use them: rotary, relative biases, and disentangled distances.

Rotary positions rotate queries and keys by angles proportional to their position. The tables of relative
biases and of distances are shared by layers, and each layer has its own terms or projections.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.lora import weight_of
from unmask.encoder.layers.parts import build_norm
from unmask.kernels import AttentionBias, DistanceBias, RelativeBias
from unmask.kernels.distances import table_rows
from unmask.kernels.dropout import Dropout
from unmask.spec import Disentangled, RelativePositionBias, Rotary, SoftmaxAttention


class RotaryTable(NamedTuple):
    """The rotation of each token of a batch: cosine and sine of each angle, (T, 1, width / 2)."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def of(
        cls,
        positions_T: NDArray[np.int64],
        rotary: Rotary,
        head_width: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "RotaryTable":
        """`Rotary.waves` of each token, in float32, or in float64 for float64 inputs."""
        exact = torch.promote_types(dtype, torch.float32)
        waves = rotary.waves(np.arange(positions_T.max(initial=-1) + 1), head_width)
        rows_T = torch.from_numpy(positions_T)
        return cls(*(torch.from_numpy(wave).to(exact)[rows_T, None].to(device) for wave in waves))


def apply_rotary(x_THK: Tensor, rotation: RotaryTable, rotary: Rotary) -> Tensor:
    """Rotate each pair of features; computed in the dtype of ``rotation``, returned in that of ``x_THK``."""
    cosine, sine = rotation
    width = 2 * cosine.shape[-1]
    turned, rest = x_THK[..., :width], x_THK[..., width:]
    if rotary.interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned.chunk(2, dim=-1)
    a, b = a * cosine - b * sine, b * cosine + a * sine
    pairs = torch.stack((a, b), dim=-1).flatten(-2) if rotary.interleaved else torch.cat((a, b), dim=-1)
    pairs = pairs.to(x_THK.dtype)
    return torch.cat((pairs, rest), dim=-1) if rest.shape[-1] else pairs


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
