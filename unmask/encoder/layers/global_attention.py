"""Rows of global tokens with separate projections (Beltagy, Peters & Cohan 2020).

Axes: G global tokens of a sequence.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention

from unmask.encoder.hooks import Hook, HookPoint
from unmask.spec import SoftmaxAttention
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class GlobalGroup:
    """B sequences of one batch with equal lengths and G global tokens each."""

    tokens: slice | Tensor
    """Positions of their tokens in the packed batch, sequence by sequence; a slice if contiguous."""
    globals_BG: Tensor
    """Positions of their global tokens in the packed batch."""


@dataclass(frozen=True)
class GlobalRows:
    """The global tokens of a batch."""

    groups: tuple[GlobalGroup, ...]
    """Sequences without a global token are in no group."""

    @classmethod
    def of(cls, layout: SequenceLayout, device: torch.device) -> "GlobalRows | None":
        """The groups of a batch; None if it has no global token."""
        if layout.globals_T is None or not layout.globals_T.any():
            return None
        alike: dict[tuple[int, int], list[int]] = {}
        counts = np.add.reduceat(layout.globals_T.astype(np.int64), layout.offsets[:-1])
        for sequence, shape in enumerate(zip(layout.lengths.tolist(), counts.tolist(), strict=True)):
            if shape[1]:
                alike.setdefault(shape, []).append(sequence)
        groups = []
        for sequences in alike.values():
            rows = [layout.rows(sequence) for sequence in sequences]
            tokens = np.concatenate([np.arange(each.start, each.stop) for each in rows])
            places = torch.from_numpy(tokens[layout.globals_T[tokens]]).to(device)
            adjoin = all(before.stop == after.start for before, after in pairwise(rows))
            where = slice(rows[0].start, rows[-1].stop) if adjoin else torch.from_numpy(tokens).to(device)
            groups.append(GlobalGroup(where, places.view(len(rows), -1)))
        return cls(tuple(groups))


class GlobalAttention(nn.Module):
    """Global tokens attend to all of their sequence through their own queries, keys and values.

    Query, key and value projections are one matrix, their rows in that order. Queries are computed
    only for global tokens. If a sequence has few of them, keys and values are not computed at all: a score
    ``q (W x)`` is ``(W^T q) x``, and a mix ``sum p (W x)`` is ``W (sum p x)``, so one matrix product per
    global token and head replaces one per token. Everything is computed in the dtype of the states.
    """

    def __init__(self, spec: SoftmaxAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.width = width
        self.qkv = nn.Linear(width, 3 * spec.heads * spec.head_width, bias=spec.query_bias)

    def forward(self, x_TD: Tensor, o_THK: Tensor, rows: GlobalRows) -> Tensor:
        """``o_THK`` with its rows of global tokens replaced."""
        mixed = []
        for group in rows.groups:
            sequences, globals_each = group.globals_BG.shape
            x_BND = x_TD[group.tokens].reshape(sequences, -1, self.width)
            q_BGHK = self.project(x_TD[group.globals_BG], 0)
            few = globals_each * self.spec.heads < self.width
            o_BGHK = self._mix_states(q_BGHK, x_BND) if few else self._mix_values(q_BGHK, x_BND)
            mixed.append(o_BGHK.flatten(0, 1))
        places = torch.cat([group.globals_BG.flatten() for group in rows.groups])
        return o_THK.index_copy(0, places, torch.cat(mixed))

    def record(self, x_TD: Tensor, layer: int, hook: Hook) -> None:
        """Pass the queries and keys of the global projections, for every token, to a hook."""
        for part, place in enumerate((HookPoint.GLOBAL_QUERY, HookPoint.GLOBAL_KEY)):
            hook(place, layer, self.project(x_TD, part))

    def _mix_states(self, q_BGHK: Tensor, x_BND: Tensor) -> Tensor:
        """Mix without keys and values. A key bias adds a constant to a row's scores, which cancels."""
        sequences, globals_each, heads, head_width = q_BGHK.shape
        (keys, _), (values, bias) = self._part(1), self._part(2)
        keys_HKD, values_HKD = (matrix.view(heads, head_width, -1) for matrix in (keys, values))
        asked_BGHD = torch.einsum("bghk,hkd->bghd", q_BGHK / math.sqrt(head_width), keys_HKD)
        s_BMN = asked_BGHD.flatten(1, 2) @ x_BND.mT
        p_BMN = dropout(s_BMN.softmax(-1), self._dropout)
        mixed_BGHD = (p_BMN @ x_BND).view(sequences, globals_each, heads, -1)
        o_BGHK = torch.einsum("bghd,hkd->bghk", mixed_BGHD, values_HKD)
        if bias is not None:
            kept_BGH1 = p_BMN.sum(-1).view(sequences, globals_each, heads, 1)  # 1 except for dropout
            o_BGHK = o_BGHK + kept_BGH1 * bias.view(heads, head_width)
        return o_BGHK

    def _mix_values(self, q_BGHK: Tensor, x_BND: Tensor) -> Tensor:
        """Mix with a key and a value for every token."""
        every = (q_BGHK, self.project(x_BND, 1), self.project(x_BND, 2))
        q_BHGK, k_BHNK, v_BHNK = (x.transpose(1, 2) for x in every)
        o_BHGK = scaled_dot_product_attention(q_BHGK, k_BHNK, v_BHNK, dropout_p=self._dropout)
        return o_BHGK.transpose(1, 2)

    @property
    def _dropout(self) -> float:
        return self.spec.dropout if self.training else 0.0

    def project(self, x: Tensor, part: int) -> Tensor:
        """States (..., D) to queries (0), keys (1) or values (2), (..., H, K)."""
        return linear(x, *self._part(part)).view(*x.shape[:-1], self.spec.heads, self.spec.head_width)

    def _part(self, part: int) -> tuple[Tensor, Tensor | None]:
        """The matrix and bias of one of the three projections."""
        bias = self.qkv.bias
        return self.qkv.weight.chunk(3)[part], None if bias is None else bias.chunk(3)[part]
