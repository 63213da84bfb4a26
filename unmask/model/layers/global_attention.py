"""Rows of global tokens with projections of their own (Beltagy, Peters & Cohan 2020)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from unmask.model.spec import SoftmaxAttention
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class GlobalRows:
    """Where a batch has global tokens: for each sequence that has any, its tokens and its global ones."""

    tokens: tuple[slice, ...]
    globals_G: tuple[Tensor, ...]
    """Places in the packed batch."""

    @classmethod
    def of(cls, layout: SequenceLayout, device: torch.device) -> "GlobalRows | None":
        """None where the batch has no global token."""
        if layout.globals_T is None or not layout.globals_T.any():
            return None
        tokens, places = [], []
        for sequence in range(layout.sequence_count):
            rows = layout.rows(sequence)
            found = np.flatnonzero(layout.globals_T[rows]) + rows.start
            if len(found):
                tokens.append(rows)
                places.append(torch.from_numpy(found).to(device))
        return cls(tuple(tokens), tuple(places))


class GlobalAttention(nn.Module):
    """Global tokens attend to all of their sequence through their own queries, keys and values.

    Query, key and value projections are one matrix, their rows in that order.
    """

    def __init__(self, spec: SoftmaxAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = nn.Linear(width, 3 * spec.heads * spec.head_width, bias=spec.query_bias)

    def forward(self, x_TD: Tensor, o_THK: Tensor, rows: GlobalRows) -> Tensor:
        """``o_THK`` with the rows of global tokens in place of what it has there."""
        spec = self.spec
        places, mixed = [], []
        for tokens, globals_G in zip(rows.tokens, rows.globals_G, strict=True):
            x_ND = x_TD[tokens]
            q_NHK, k_NHK, v_NHK = self.qkv(x_ND).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3)
            q_1HGK, k_1HNK, v_1HNK = (
                each.transpose(0, 1)[None] for each in (q_NHK[globals_G - tokens.start], k_NHK, v_NHK)
            )
            dropout = spec.dropout if self.training else 0.0
            o_1HGK = scaled_dot_product_attention(q_1HGK, k_1HNK, v_1HNK, dropout_p=dropout)
            places.append(globals_G)
            mixed.append(o_1HGK[0].transpose(0, 1))
        return o_THK.index_copy(0, torch.cat(places), torch.cat(mixed))
