"""Attention as groups of equal work: blocks of queries, and the places of the keys of each block.

All keys that a query attends to are in one group, so every softmax is over complete rows, without rescaling.

Axes: P places of tokens in the plan, empty ones among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

SCORES_AT_ONCE = 1 << 19
"""Scores of a slab of several blocks: 2 MiB in float32, about the size of a core's cache; measured."""


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of the rows or keys of B blocks among the places P of all tokens."""

    index: Tensor
    """Shape (B, C), or (H, B, C) where heads differ."""
    first: int = 0
    spacing: int | None = None
    """Each block is a run of neighbors, the first at ``first`` and each next one as far on as this
    (0: the same run for all); None where places are listed."""
    listed: int = 0
    """How many places at the end of each block are listed, although the others are a run."""

    @classmethod
    def runs(cls, first: int, blocks: int, length: int, spacing: int, device: torch.device) -> "Places":
        """Runs of ``length`` neighbors."""
        run_C = torch.arange(first, first + length, device=device)
        if spacing == 0:
            return cls(run_C.expand(blocks, -1), first, 0)
        return cls(run_C + torch.arange(blocks, device=device)[:, None] * spacing, first, spacing)

    def take(self, x_PHK: Tensor, heads: slice, blocks: slice) -> Tensor:
        """The values at these places, (H, B, C, K): a view if places are runs."""
        if self.spacing is None:
            flat = self._flat(x_PHK, heads, blocks)
            return x_PHK.view(-1, x_PHK.shape[-1]).index_select(0, flat.flatten()).view(*flat.shape, -1)
        run_HBCK = self._view(x_PHK, heads, blocks, 0, self.index.shape[-1] - self.listed)
        return torch.cat((run_HBCK, self._rest().take(x_PHK, heads, blocks)), 2) if self.listed else run_HBCK

    def put(self, x_PHK: Tensor, heads: slice, blocks: slice, y_HBRK: Tensor) -> None:
        """Write to these places. Only padding places may occur twice."""
        if self.spacing is None:
            flat = self._flat(x_PHK, heads, blocks)
            x_PHK.view(-1, x_PHK.shape[-1]).index_copy_(0, flat.flatten(), y_HBRK.flatten(0, 2))
        else:
            self._view(x_PHK, heads, blocks, 0, self.index.shape[-1]).copy_(y_HBRK)

    def add(self, x_PHK: Tensor, heads: slice, blocks: slice, y_HBCK: Tensor) -> None:
        """Add to these places in a fixed order, so that sums are reproducible to the bit."""
        length = self.index.shape[-1] - self.listed
        if self.listed:
            self._rest().add(x_PHK, heads, blocks, y_HBCK[:, :, length:])
        if self.spacing is None:
            flat, flat_x = self._flat(x_PHK, heads, blocks).flatten(), x_PHK.view(-1, x_PHK.shape[-1])
            if x_PHK.device.type == "cpu":
                flat_x.index_add_(0, flat, y_HBCK.flatten(0, 2))
            else:  # index_add_ is atomic on a GPU; this operation sorts
                flat_x.index_put_((flat,), y_HBCK.flatten(0, 2), accumulate=True)
        elif self.spacing == 0:
            x_PHK[self.first : self.first + length, heads] += y_HBCK.sum(1).transpose(0, 1)
        else:  # parts of a run that no neighboring block shares
            for start in range(0, length, self.spacing):
                end = min(start + self.spacing, length)
                self._view(x_PHK, heads, blocks, start, end).add_(y_HBCK[:, :, start:end])

    def _rest(self) -> "Places":
        return Places(self.index[..., -self.listed :])

    def ends(self, blocks: slice) -> tuple[int, int]:
        """The first place of some runs and the place after their last."""
        assert self.spacing is not None
        last = self.first + (blocks.stop - 1) * self.spacing + self.index.shape[-1]
        return self.first + blocks.start * self.spacing, last

    def _view(self, x_PHK: Tensor, heads: slice, blocks: slice, start: int, end: int) -> Tensor:
        assert self.spacing is not None
        by_place, by_head, by_feature = x_PHK.stride()
        first = self.first + blocks.start * self.spacing + start
        return x_PHK.as_strided(
            (heads.stop - heads.start, blocks.stop - blocks.start, end - start, x_PHK.shape[2]),
            (by_head, self.spacing * by_place, by_place, by_feature),
            x_PHK.storage_offset() + heads.start * by_head + first * by_place,
        )

    def _flat(self, x_PHK: Tensor, heads: slice, blocks: slice) -> Tensor:
        index = self.index[heads, blocks] if self.index.ndim == 3 else self.index[blocks]
        head_H11 = torch.arange(heads.start, heads.stop, device=index.device)[:, None, None]
        return index * x_PHK.shape[1] + head_H11


@dataclass(frozen=True, eq=False)
class Group:
    """B blocks of R queries, each with C keys."""

    rows: Places
    keys: Places
    log_counts: Tensor | None = None
    """Natural log of how often each key counts, (B, C) or (H, B, C); minus infinity for padding.
    None: once each."""
    band: int = 0
    """How many of the keys, from the first, are restricted to the window; the others, global tokens, are
    restricted to the text."""
    causal: int = 0
    """How many of the keys, from the last, are masked for the queries before them; the others are seen."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, R and C."""
        return self.rows.index.shape[0], self.rows.index.shape[1], self.keys.index.shape[-1]

    def slabs(self, heads: int, *, apart: bool) -> Iterator[tuple[slice, list[slice]]]:
        """Blocks to run at once, and heads to run them with, so that memory does not grow with the text.

        ``apart``: one block of one head at a time.
        """
        blocks, rows, keys = self.shape
        # Listed keys are copied, which matters if a block has few queries.
        at_once = 1 if apart else max(1, SCORES_AT_ONCE // (max(rows, 64) * keys))
        if self.keys.spacing is None or self.keys.listed:
            together = None
        elif heads * -(-blocks // at_once) <= blocks * -(-heads // at_once):
            together = 1  # many blocks of one head are a view, and so are many heads of one block, not both
        else:
            together, at_once = at_once, 1
        for first in range(0, blocks, at_once):
            block_slice = slice(first, min(first + at_once, blocks))
            step = together or max(1, at_once // (block_slice.stop - block_slice.start))
            yield block_slice, [slice(h, min(h + step, heads)) for h in range(0, heads, step)]


@dataclass(frozen=True, eq=False)
class TiledPlan:
    """The groups of a batch, and tables of all places P of its tokens."""

    groups: tuple[Group, ...]
    """The groups in writing order: rows of a later group replace those of an earlier one."""
    tokens: int
    front: int
    """Empty places before the first token; some also follow the last."""
    strand_P: Tensor
    """The text of each place or, for a dilated window, the strand of the text; -1 if empty."""
    text_P: Tensor
    position_P: Tensor
    """The position of each place within its text."""
    globals_P: Tensor | None
    radius: int
    """The radius of the window, in places."""
    breaks: NDArray[np.int64]
    """Places before which one strand ends and another begins, ascending; on the host."""
    order_T: Tensor | None
    """Tokens in the order of places; None if that is the packed order."""
    restore_T: Tensor | None
    seen: dict[tuple[int, int, torch.dtype], Tensor] = field(default_factory=dict)
    """Cached bands, for the following layers."""

    def band(self, number: int, blocks: slice, dtype: torch.dtype) -> Tensor | None:
        """The additive mask of a group's scores: minus infinity or 0, (B, R, C).

        (1, R, C) where it is the same for all; of the last keys only where the others are seen by all;
        None where all keys are seen.
        """
        group = self.groups[number]
        if group.causal:
            return self._later(number, blocks, dtype)
        if not group.band:
            return None
        key = (number, blocks.start, dtype)
        if key in self.seen:
            return self.seen[key]
        if group.keys.spacing is not None and self.globals_P is None:
            first, last = group.keys.ends(blocks)
            if np.searchsorted(self.breaks, first, "right") == np.searchsorted(self.breaks, last):
                blocks = slice(blocks.start, blocks.start + 1)
        unseen = self._unseen(group, blocks)
        band = torch.zeros(unseen.shape, dtype=dtype, device=unseen.device)
        band.masked_fill_(unseen, float("-inf"))
        if band.shape[-1] <= 2 * group.band:  # else global tokens are many, and memory not linear in tokens
            self.seen[key] = band
        return band

    def _later(self, number: int, blocks: slice, dtype: torch.dtype) -> Tensor:
        """The band of a causal group; kept for the following layers where all blocks share it."""
        group, shared = self.groups[number], self.groups[number].rows is self.groups[number].keys
        key = (number, 0, dtype)
        if shared and key in self.seen:
            return self.seen[key]
        block_slice = slice(0, 1) if shared else blocks
        rows_BR1 = group.rows.index[block_slice][:, :, None]
        later = group.keys.index[block_slice][:, None, -group.causal :] > rows_BR1
        band = torch.zeros(later.shape, dtype=dtype, device=later.device).masked_fill_(later, float("-inf"))
        if shared:
            self.seen[key] = band
        return band

    def _unseen(self, group: Group, blocks: slice) -> Tensor:
        rows_BR1, keys_B1C = group.rows.index[blocks][:, :, None], group.keys.index[blocks][:, None, :]
        near_B1C, far_B1C = keys_B1C[..., : group.band], keys_B1C[..., group.band :]
        unseen = (rows_BR1 - near_B1C).abs() > self.radius
        unseen |= self.strand_P[rows_BR1] != self.strand_P[near_B1C]
        if self.globals_P is None:
            return unseen
        unseen |= self.globals_P[near_B1C]
        return torch.cat((unseen, self.text_P[rows_BR1] != self.text_P[far_B1C]), dim=-1)

    def distances(self, number: int, heads: slice, blocks: slice, dtype: torch.dtype) -> Tensor:
        """Distances between queries and keys in their text, (B, R, C) or (H, B, R, C).

        (1, R, C) where it is the same for all blocks.
        """
        group = self.groups[number]
        if group.rows is group.keys:  # texts of one length
            blocks = slice(0, 1)
        rows, keys = (
            places.index[heads, blocks] if places.index.ndim == 3 else places.index[blocks]
            for places in (group.rows, group.keys)
        )
        position_P = self.position_P.to(dtype)
        return (position_P[rows][..., :, None] - position_P[keys][..., None, :]).abs_()

    def spread(self, x_THK: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens in their places, (P, H, K), with zeros in empty ones; the same tensor if possible."""
        x_THK = (x_THK if self.order_T is None else x_THK.index_select(0, self.order_T)).to(dtype)
        places = len(self.strand_P)
        if places > self.tokens:
            return pad(x_THK, (0, 0, 0, 0, self.front, places - self.front - self.tokens))
        # Listed places are read from the tensor as one table.
        listed = any(group.keys.spacing is None for group in self.groups)
        return x_THK.contiguous() if listed else x_THK

    def gather(self, x_PHK: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens back in packed order, (T, H, K)."""
        x_THK = x_PHK[self.front : self.front + self.tokens]
        x_THK = x_THK if self.restore_T is None else x_THK.index_select(0, self.restore_T)
        return x_THK.to(dtype).contiguous()
