"""Each attention pattern as groups of equal work.

Axes: P places of tokens in the plan, empty ones among them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.kernels.tile import block_counts
from unmask.kernels.tiled.groups import SCORES_AT_ONCE, Group, Places, TiledPlan
from unmask.spec import AttentionPattern, BlockSparse, CausalAttention, SlidingWindow, SlidingWindowGlobal
from unmask.text.batch import SequenceLayout

CHUNK = 64
"""Minimum number of queries of a window's block; wider windows use their radius, so that two thirds of the
scores are used."""

MOST_ROWS = 512
"""Maximum number of queries of a block that runs alone; for long texts the limit is twice a slab's scores.
Both are measured."""

STRETCHES = 8
"""Stretches of a long text with causal attention; with n of them, a share of 1 / (n + 1) of the scores is not
used."""

Span = tuple[int, int]
"""The first place of a text and its number of tokens."""


def make_plan(
    layout: SequenceLayout, pattern: AttentionPattern, heads: int, device: torch.device
) -> TiledPlan:
    """The groups of a batch for layers with this number of heads."""
    window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
    longest = int(layout.lengths.max())
    if not isinstance(window, SlidingWindow) or (window.dilation == 1 and longest <= window.radius + 1):
        # One empty place, for blocks that need padding.
        front = 1 if isinstance(window, BlockSparse) else 0
        plan = _Places(layout, front, 0, device)
        spans = [(front + int(o), int(n)) for o, n in zip(layout.offsets, layout.lengths, strict=False)]
        if isinstance(window, BlockSparse):
            return plan.of(_blocks(spans, window, heads, device))
        return plan.of(_whole(spans, device, causal=isinstance(window, CausalAttention)))
    radius = min(window.radius, (longest - 1) // window.dilation)
    globals_T = layout.globals_T if isinstance(pattern, SlidingWindowGlobal) else None
    if globals_T is not None and not globals_T.any():
        globals_T = None
    block = max(CHUNK, radius)
    if globals_T is None:
        plan = _Places(layout, 0, 0, device, dilation=window.dilation)
        return plan.of(_band(layout.token_count, radius, block, device), radius)
    plan = _Places(
        layout, max(1, radius), radius + block, device, globals_T=globals_T, dilation=window.dilation
    )
    groups = [*_band_and_globals(layout.token_count, radius, block, plan, device)]
    if (
        isinstance(pattern, SlidingWindowGlobal)
        and not pattern.own_projections
        and plan.globals_P is not None
    ):
        groups.extend(_global_rows(plan.text_P, plan.globals_P, device))
    return plan.of(groups, radius)


class _Places:
    """Tables of all places, on the host."""

    def __init__(
        self,
        layout: SequenceLayout,
        front: int,
        back: int,
        device: torch.device,
        *,
        globals_T: NDArray[np.bool_] | None = None,
        dilation: int = 1,
    ) -> None:
        self.tokens, self.front, self.device = layout.token_count, front, device
        strand, self.order = layout.sequence_of_T * dilation + layout.positions_T % dilation, None
        if dilation > 1:
            # Tokens of a text whose distance is a multiple of the dilation become neighbors.
            self.order = np.argsort(strand, kind="stable")

        def placed(table: NDArray[Any], empty: int) -> NDArray[Any]:
            table = table if self.order is None else table[self.order]
            return np.pad(table, (front, back), constant_values=empty)

        self.strand_P, self.text_P = placed(strand, -1), placed(layout.sequence_of_T, -1)
        self.position_P = placed(layout.positions_T, 0)
        self.globals_P = None if globals_T is None else placed(globals_T, 0)

    def of(self, groups: Iterable[Group], radius: int = 0) -> TiledPlan:
        """The plan of these groups."""
        order, marks, to = self.order, self.globals_P, self.device
        return TiledPlan(
            groups=tuple(groups),
            tokens=self.tokens,
            front=self.front,
            strand_P=torch.from_numpy(self.strand_P).to(to),
            text_P=torch.from_numpy(self.text_P).to(to),
            position_P=torch.from_numpy(self.position_P).to(to),
            globals_P=None if marks is None else torch.from_numpy(marks).to(to),
            radius=radius,
            breaks=np.flatnonzero(np.diff(self.strand_P)) + 1,
            order_T=None if order is None else torch.from_numpy(order).to(to),
            restore_T=None if order is None else torch.from_numpy(np.argsort(order)).to(to),
        )


def _whole(spans: list[Span], device: torch.device, *, causal: bool = False) -> Iterator[Group]:
    """Texts of a length that fit a slab together; longer ones by blocks of queries against all keys.

    ``causal``: against the keys up to the last query of the block.
    """
    by_length = defaultdict(list)
    for first, length in spans:
        by_length[length].append(first)
    for length, firsts in by_length.items():
        if length * length <= SCORES_AT_ONCE:
            places = _runs(firsts, length, device)
            yield Group(places, places, causal=length if causal else 0)
        else:
            for first in firsts:
                if causal:
                    yield from _earlier_keys(first, length, device)
                else:
                    yield from _all_keys(first, length, first, length, device)


def _all_keys(first: int, rows: int, first_key: int, keys: int, device: torch.device) -> Iterator[Group]:
    """Some rows of a text against all of its keys; the incomplete last block is a separate group."""
    block = min(rows, _block_rows(keys))
    blocks, rest = divmod(rows, block)
    for start, count, size in ((first, blocks, block), (first + rows - rest, 1, rest)):
        if size:
            queries = Places.runs(start, count, size, size, device)
            yield Group(queries, Places.runs(first_key, count, keys, 0, device))


def _earlier_keys(first: int, length: int, device: torch.device) -> Iterator[Group]:
    """Stretches of rows of a text, each against the keys up to its last row, the longest keys first.

    They are few, because products of every other shape are compiled and kept by oneDNN.
    """
    size = -(-length // STRETCHES)
    for start in reversed(range(0, length, size)):
        end = min(start + size, length)
        for group in _all_keys(first + start, end - start, first, end, device):
            yield replace(group, causal=first + end - group.rows.first)


def _block_rows(keys: int) -> int:
    """The number of queries of a block that has this many keys."""
    return min(MOST_ROWS, max(16, 2 * SCORES_AT_ONCE // keys // 16 * 16))


def _runs(firsts: list[int], length: int, device: torch.device) -> Places:
    """Runs of neighbors, views if equally spaced."""
    apart = set(np.diff(firsts).tolist()) or {length}
    if len(apart) == 1:
        return Places.runs(firsts[0], len(firsts), length, apart.pop(), device)
    index = np.array(firsts)[:, None] + np.arange(length)
    return Places(torch.from_numpy(index).to(device))


def _band(tokens: int, radius: int, block: int, device: torch.device) -> Iterator[Group]:
    """Blocks of neighbors, regardless of their texts, with the keys around them.

    Blocks with all keys on both sides form one group; those at the ends form one each.
    """
    span = block + 2 * radius
    within = range(-(-radius // block), (tokens - block - radius) // block + 1)
    if within:
        rows = Places.runs(within.start * block, len(within), block, block, device)
        keys = Places.runs(within.start * block - radius, len(within), span, block, device)
        yield Group(rows, keys, band=span)
    for start in range(0, tokens, block):
        if start // block in within:
            continue
        count = min(block, tokens - start)
        first, last = max(0, start - radius), min(tokens, start + count + radius)
        queries = Places.runs(start, 1, count, count, device)
        yield Group(queries, Places.runs(first, 1, last - first, 0, device), band=last - first)


def _band_and_globals(
    tokens: int, radius: int, block: int, places: _Places, device: torch.device
) -> Iterator[Group]:
    """Blocks of neighbors with the keys around and the global tokens of their texts.

    Rows of global tokens are among them, for a later group or the layer to replace.
    """
    blocks, span, front = -(-tokens // block), block + 2 * radius, places.front
    rows = Places.runs(front, blocks, block, block, device)
    keys = Places.runs(front - radius, blocks, span, block, device)
    assert places.globals_P is not None
    marked = np.flatnonzero(places.globals_P)
    listed = []
    for start in range(front, front + blocks * block, block):
        texts = places.text_P[start : min(start + block, front + tokens)]
        listed.append(marked[np.isin(places.text_P[marked], texts)])
    for size, numbers in _by_size([len(keys) for keys in listed]):
        far = np.stack([np.pad(listed[number], (0, size - len(listed[number]))) for number in numbers])
        first, count = numbers[0] * block, len(numbers)
        chosen = torch.tensor(numbers, device=device)
        both = torch.cat((keys.index[chosen], torch.from_numpy(far).to(device)), dim=1)
        if numbers[-1] - numbers[0] == count - 1:  # neighbors, as all are of one text
            queries = Places.runs(front + first, count, block, block, device)
            yield Group(queries, Places(both, front - radius + first, block, listed=size), band=span)
        else:
            yield Group(Places(rows.index[chosen]), Places(both), band=span)


def _by_size(sizes: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Numbers of like size together: sizes up to the next power of two, so at most half is padding."""
    alike: dict[int, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        alike[(size - 1).bit_length() if size else -1].append(number)
    for numbers in alike.values():
        yield max(sizes[number] for number in numbers), numbers


def _global_rows(
    text_P: NDArray[np.int64], globals_P: NDArray[np.bool_], device: torch.device
) -> Iterator[Group]:
    """Rows of global tokens against all keys of their text."""
    work = []
    for text in np.unique(text_P[globals_P]):
        keys = np.flatnonzero(text_P == text)
        rows = keys[globals_P[keys]]
        work += [(rows[start : start + CHUNK], keys) for start in range(0, len(rows), CHUNK)]
    for longest, numbers in _by_size([len(keys) for _, keys in work]):
        most = max(len(work[number][0]) for number in numbers)
        rows = np.stack([np.pad(r, (0, most - len(r))) for r in (work[number][0] for number in numbers)])
        keys = np.stack([np.pad(k, (0, longest - len(k))) for k in (work[number][1] for number in numbers)])
        listed = [Places(torch.from_numpy(places).to(device)) for places in (rows, keys)]
        yield Group(listed[0], listed[1], _log(keys > 0, device))


def _blocks(spans: list[Span], pattern: BlockSparse, heads: int, device: torch.device) -> Iterator[Group]:
    """Whole short texts; of longer ones the first and last block of rows whole, the others listed."""
    yield from _whole([span for span in spans if span[1] <= pattern.whole_up_to], device)
    size = pattern.block
    for first, length in spans:
        if length <= pattern.whole_up_to:
            continue
        last = (length - 1) // size * size
        for start, rows in ((first, size), (first + last, length - last)):
            yield from _all_keys(start, rows, first, length, device)
        yield _listed_blocks(first, length, pattern, heads, device)


def _listed_blocks(first: int, length: int, pattern: BlockSparse, heads: int, device: torch.device) -> Group:
    """All blocks of rows but the first and the last, which alone may be short."""
    size = pattern.block
    blocks = -(-length // size)
    counts = block_counts(pattern, blocks, heads if pattern.heads_differ else 1)[:, 1:-1]
    most = int((counts > 0).sum(-1).max())
    attended = np.argsort(counts == 0, axis=-1, kind="stable")[..., :most]
    times = np.repeat(np.take_along_axis(counts, attended, axis=-1), size, axis=-1)
    places = (attended[..., None] * size + np.arange(size)).reshape(*attended.shape[:2], -1)
    times[places >= length] = 0
    places = np.where(times > 0, places + first, 0)
    if not pattern.heads_differ:
        places, times = places[0], times[0]
    rows = Places.runs(first + size, blocks - 2, size, size, device)
    return Group(rows, Places(torch.from_numpy(places).to(device)), _log(times, device))


def _log(counts: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(counts.astype(np.float64))).to(device)
