"""Softmax attention over padded batches of any size, in operations that ONNX has.

`kernels.tile` defines what is computed here; tests compare the two. It is written again because a graph has
symbols for sizes: what depends on distances is a table made beforehand.

Axes: B texts; X blocks of queries (in windows, of all texts); W keys that the window of a block reads; G
global tokens of a text; I features that the output projection reads.
"""

import math
from collections.abc import Mapping
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional

from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.positions import RotaryTable
from unmask.kernels.distances import bucket_rows, table_rows
from unmask.kernels.tile import Tile, allowed
from unmask.spec import (
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
)

SMALLEST_BLOCK = 16
"""Queries of a block of a window, at least: many small products cost more than a few masked scores."""


class PaddedAttention(nn.Module):
    """One `SoftmaxMixer` over padded texts.

    Args:
        mixer: the layer, whose weights are used.
        longest: the most tokens of a text.
        global_tokens: how many tokens at the beginning of each text are global, where the pattern has such.
        rows: queries of full attention whose scores are computed at once, in a loop of the graph; None: all,
            without a loop.
    """

    rows_D: Tensor | None
    slopes_H11: Tensor | None

    def __init__(
        self, mixer: SoftmaxMixer, longest: int, *, global_tokens: int, rows: int | None = None
    ) -> None:
        super().__init__()
        self.mixer, self.longest, self.rows = mixer, longest, rows
        pattern, position = mixer.spec.pattern, mixer.spec.position
        windowed = isinstance(pattern, SlidingWindowGlobal)
        self.window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
        self.global_tokens = global_tokens if windowed else 0
        self.block = 0
        """Queries of a block of a window; 0 if scores are computed for all keys."""
        if isinstance(self.window, SlidingWindow) and self.window.dilation == 1:
            block = max(self.window.radius, SMALLEST_BLOCK)
            self.block = block if 2 * block < longest else 0
        if isinstance(position, Rotary):
            waves = RotaryTable.of(np.arange(longest), position, mixer.spec.head_width, torch.float32)
            for name, wave in zip(("cosine", "sine"), waves, strict=True):
                self.register_buffer(name, wave, persistent=False)
        behind_D = torch.arange(1 - longest, longest)
        rows_D = None
        if isinstance(position, Disentangled):
            rows_D = table_rows(behind_D, position)
        elif isinstance(position, RelativePositionBias):
            rows_D = bucket_rows(behind_D, position)
        self.register_buffer("rows_D", rows_D, persistent=False)
        slopes_H = mixer.bias.slopes_H
        self.register_buffer(
            "slopes_H11", None if slopes_H is None else slopes_H.float()[:, None, None], persistent=False
        )

    def forward(self, x_BND: Tensor, present_BN: Tensor, table_PD: Tensor | None) -> Tensor:
        """Shape (B, N, D) in and out; rows of padding are finite and mean nothing."""
        spec, length = self.mixer.spec, x_BND.shape[1]
        rotation = None
        if isinstance(spec.position, Rotary):
            rotation = RotaryTable(self.cosine[:length], self.sine[:length])  # type: ignore[index]
        q_BHNK, k_BHNK, v_BHNK = (x_BHNK.transpose(1, 2) for x_BHNK in self.mixer.project(x_BND, rotation))
        tables = self._tables(table_PD)
        if self.block:
            o_BHNK = self._windows(q_BHNK, k_BHNK, v_BHNK, present_BN, tables)
        else:
            o_BHNK = self._whole(q_BHNK, k_BHNK, v_BHNK, present_BN, tables)
        if self.global_tokens:
            o_BHNK = self._global_rows(x_BND, q_BHNK, k_BHNK, v_BHNK, o_BHNK, present_BN)
        o_BNI = o_BHNK.transpose(1, 2).flatten(-2)
        if self.mixer.spans is not None:
            spans_BNHK = self.mixer.spans.padded(x_BND, q_BHNK.transpose(1, 2), present_BN)
            o_BNI = torch.cat((o_BNI, spans_BNHK.flatten(-2)), dim=-1)
        y_BND: Tensor = self.mixer.out(o_BNI)
        return y_BND

    def _tables(self, table_PD: Tensor | None) -> dict[str, Tensor]:
        """What scores of this layer read beside queries and keys, without what it does not have.

        These are its tables of distances as ``keys`` and as ``queries`` (H, P, K), its ``biases`` (H, P), the
        ``rows`` of distances in them (D,), and ``slopes`` (H, 1, 1).
        """
        tables = {"rows": self.rows_D, "slopes": self.slopes_H11}
        if self.mixer.distances is not None and table_PD is not None:
            bias = self.mixer.distances(table_PD, self.mixer.qkv)
            if bias.relative is not None:
                tables["biases"] = bias.relative.table_PH.T
            else:
                for name, table_PHK in (
                    ("keys", bias.distances.keys_PHK),
                    ("queries", bias.distances.queries_PHK),
                ):
                    tables[name] = None if table_PHK is None else table_PHK.transpose(0, 1)
        return {name: table for name, table in tables.items() if table is not None}

    def _scores(
        self, q_BHRK: Tensor, k_BHCK: Tensor, distance_RC: Tensor, tables: Mapping[str, Tensor]
    ) -> Tensor:
        """`tile.scores`, (B, H, R, C); ``distance_RC`` is each key's position minus its query's."""
        s_BHRC, parts = q_BHRK @ k_BHCK.mT, 1
        if "rows" in tables:
            # Places beyond the longest text are masked, and read the last row.
            farthest = self.longest - 1
            rows_RC = tables["rows"][(farthest - distance_RC).clamp(0, 2 * farthest)]
        if isinstance(self.mixer.spec.position, Disentangled):
            parts = self.mixer.spec.position.term_count
            if "keys" in tables:
                every_BHRP = q_BHRK @ tables["keys"].mT
                s_BHRC = s_BHRC + every_BHRP.gather(-1, rows_RC.expand(*s_BHRC.shape[:2], -1, -1))
            if "queries" in tables:
                every_BHCP = k_BHCK @ tables["queries"].mT
                mirrored = every_BHCP.gather(-1, rows_RC.T.expand(*s_BHRC.shape[:2], -1, -1))
                s_BHRC = s_BHRC + mirrored.mT
        s_BHRC = s_BHRC / math.sqrt(q_BHRK.shape[-1] * parts)
        if "slopes" in tables:
            s_BHRC = s_BHRC - tables["slopes"] * distance_RC.abs()
        if "biases" in tables:
            s_BHRC = s_BHRC + tables["biases"][:, rows_RC]
        return s_BHRC

    def _whole(
        self,
        q_BHNK: Tensor,
        k_BHNK: Tensor,
        v_BHNK: Tensor,
        present_BN: Tensor,
        tables: Mapping[str, Tensor],
    ) -> Tensor:
        """Each query beside every key, (B, H, N, K), in a loop over blocks of `rows` queries."""
        places_N = torch.arange(q_BHNK.shape[2])
        read = {"k": k_BHNK, "v": v_BHNK, "present": present_BN, "places": places_N, **tables}
        if self.rows is None:
            return self._mixed(q_BHNK, places_N, read)
        # What the loop reads is its state, because in OpenVINO it has no access to values around it.
        read |= {"q": q_BHNK, "block": torch.arange(self.rows)}
        firsts_X = torch.arange(0, q_BHNK.shape[2], self.rows)

        def step(read: dict[str, Tensor], first: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            rows_R = first + read["block"]
            q_BHRK = read["q"].index_select(2, rows_R.minimum(read["places"][-1]))
            mixed_RBHK = self._mixed(q_BHRK, rows_R, read).movedim(2, 0)
            return {name: tensor.clone() for name, tensor in read.items()}, mixed_RBHK.contiguous()

        if torch.compiler.is_exporting():
            dense = {name: tensor.contiguous() for name, tensor in read.items()}  # as clones are
            _, o_XRBHK = scan(step, dense, firsts_X)
        else:  # torch would compile the loop for each shape
            o_XRBHK = torch.stack([step(read, first)[1] for first in firsts_X])
        o_BHNK: Tensor = o_XRBHK.flatten(0, 1).index_select(0, places_N).movedim(0, 2)
        return o_BHNK

    def _mixed(self, q_BHRK: Tensor, rows_R: Tensor, read: Mapping[str, Tensor]) -> Tensor:
        """What the queries at ``rows_R`` take from all values, (B, H, R, K)."""
        distance_RC = read["places"][None, :] - rows_R[:, None]
        s_BHRC = self._scores(q_BHRK, read["k"], distance_RC, read)
        return self._softmax(s_BHRC, rows_R, distance_RC, read["present"]) @ read["v"]

    def _softmax(self, s_BHRC: Tensor, rows_R: Tensor, distance_RC: Tensor, present_BN: Tensor) -> Tensor:
        """Probabilities of whole rows: what the pattern does not allow, and padding, get 0."""
        seen_BRC = present_BN[:, None, :]
        match self.window:
            case CausalAttention():
                seen_BRC = seen_BRC & (distance_RC <= 0)
            case SlidingWindow(radius=radius, dilation=dilation):
                near_RC = (distance_RC.abs() <= radius * dilation) & (distance_RC % dilation == 0)
                firsts = torch.arange(distance_RC.shape[1]) < self.global_tokens
                seen_BRC = seen_BRC & (near_RC | firsts)
            case BlockSparse() as pattern:
                counts_BRC = self._block_counts(pattern, rows_R, present_BN)
                s_BHRC = s_BHRC + counts_BRC.clamp_min(1).log()[:, None]
                seen_BRC = seen_BRC & (counts_BRC > 0)
            case FullAttention():
                pass
            case _:
                assert_never(self.window)
        return masked_softmax(s_BHRC, seen_BRC[:, None])

    def _block_counts(self, pattern: BlockSparse, rows_R: Tensor, present_BN: Tensor) -> Tensor:
        """How often each query counts each key, (B, R, N), where all random blocks are block 0."""
        lengths_B11 = present_BN.sum(1)[:, None, None]
        last_B11 = (lengths_B11 - 1) // pattern.block
        row_R1 = rows_R[:, None] // pattern.block
        column_C = torch.arange(present_BN.shape[1]) // pattern.block
        ends = (row_R1 == 0) | (column_C == 0) | (row_R1 == last_B11) | (column_C == last_B11)
        near = (row_R1 - column_C).abs() <= 1
        inner = (row_R1 > 0) & (row_R1 < last_B11)
        counts_BRC = (near | ends).float() + pattern.random_blocks * (inner & (column_C == 0)).float()
        return torch.where(lengths_B11 <= pattern.whole_up_to, torch.ones_like(counts_BRC), counts_BRC)

    def _windows(
        self,
        q_BHNK: Tensor,
        k_BHNK: Tensor,
        v_BHNK: Tensor,
        present_BN: Tensor,
        tables: Mapping[str, Tensor],
    ) -> Tensor:
        """Each block of queries beside the keys of its window, and the global tokens, (B, H, N, K)."""
        assert isinstance(self.window, SlidingWindow)
        block, firsts = self.block, self.global_tokens
        batch, _, length, width = q_BHNK.shape
        blocks = (length + block - 1) // block
        missing = blocks * block - length

        def cut(x_BHNK: Tensor) -> Tensor:
            """The keys or values of each block's window, (B blocks, H, W, K)."""
            around_BHXK = functional.pad(x_BHNK, (0, 0, block, missing + block))
            parts = torch.unflatten(around_BHXK, 2, (blocks + 2, block))
            near = torch.cat((parts[:, :, :-2], parts[:, :, 1:-1], parts[:, :, 2:]), dim=3)
            return near.transpose(1, 2).flatten(0, 1)

        q_XHRK = torch.unflatten(functional.pad(q_BHNK, (0, 0, 0, missing)), 2, (blocks, block))
        q_XHRK = q_XHRK.transpose(1, 2).flatten(0, 1)
        k_XHWK, v_XHWK = cut(k_BHNK), cut(v_BHNK)
        distance_RW = torch.arange(-block, 2 * block)[None, :] - torch.arange(block)[:, None]
        s_XHRW = self._scores(q_XHRK, k_XHWK, distance_RW, tables)
        ordinary_BN = present_BN & (torch.arange(length) >= firsts)
        seen_X11W = cut(ordinary_BN[:, None, :, None].float())[:, :, :, 0][:, :, None, :] > 0
        near_RW = allowed(Tile(0, block, -block, 2 * block), self.window, distance_RW.device)
        seen_X1RW = seen_X11W if near_RW is None else seen_X11W & near_RW
        if firsts:
            few_XHGK = [
                x_BHNK[:, None, :, :firsts].expand(-1, blocks, -1, -1, -1).flatten(0, 1)
                for x_BHNK in (k_BHNK, v_BHNK)
            ]
            s_XHRG = q_XHRK @ few_XHGK[0].mT / math.sqrt(width)
            given_B1G = present_BN[:, None, :firsts].expand(-1, blocks, -1).flatten(0, 1)[:, None, None, :]
            s_XHRW = torch.cat((s_XHRG, s_XHRW), dim=-1)
            seen_X1RW = torch.cat((given_B1G.expand(-1, -1, block, -1), seen_X1RW), dim=-1)
            v_XHWK = torch.cat((few_XHGK[1], v_XHWK), dim=2)
        o_XHRK = masked_softmax(s_XHRW, seen_X1RW) @ v_XHWK
        o_BHXK = torch.unflatten(o_XHRK, 0, (batch, blocks)).transpose(1, 2).flatten(2, 3)
        return o_BHXK[:, :, :length]

    def _global_rows(  # noqa: PLR0917
        self,
        x_BND: Tensor,
        q_BHNK: Tensor,
        k_BHNK: Tensor,
        v_BHNK: Tensor,
        o_BHNK: Tensor,
        present_BN: Tensor,
    ) -> Tensor:
        """The output with the rows of global tokens replaced: they attend to all of their text."""
        firsts, separate = self.global_tokens, self.mixer.globals
        q_BHGK = q_BHNK[:, :, :firsts]
        if separate is not None:
            q_BHGK = separate.project(x_BND[:, :firsts], 0).transpose(1, 2)
            k_BHNK, v_BHNK = (separate.project(x_BND, part).transpose(1, 2) for part in (1, 2))
        s_BHGN = q_BHGK @ k_BHNK.mT / math.sqrt(q_BHGK.shape[-1])
        o_BHGK = masked_softmax(s_BHGN, present_BN[:, None, None, :]) @ v_BHNK
        return torch.cat((o_BHGK, o_BHNK[:, :, firsts:]), dim=2)


def masked_softmax(s_BHRC: Tensor, seen: Tensor) -> Tensor:
    """Softmax over what is seen. A row that sees nothing, which only padding has, stays finite."""
    return s_BHRC.masked_fill(~seen, torch.finfo(s_BHRC.dtype).min).softmax(dim=-1)
