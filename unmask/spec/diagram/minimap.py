"""An attention pattern as a small map of queries (down) by keys (across): its kind, not its size."""

from collections.abc import Callable
from typing import assert_never

from unmask.spec import (
    AttentionPattern,
    BlockSparse,
    CausalAttention,
    FullAttention,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.spec.diagram.drawing import Box, Shape

SIDE = 12
"""Cells of a side."""
RADIUS = 2
"""Of a window that is drawn, whatever the pattern's own: the map says that there is one."""
SEAM = 0.3
"""Points by which a row covers the next one's edge, where a viewer would leave a pale line."""
SEEN, UNSEEN, BORDER = "#1d5aa8", "#ffffff", "#8fa3bf"
RANDOM = {(2, 7), (3, 9), (4, 8), (5, 2), (6, 9), (7, 3), (8, 4), (9, 5)}
"""Cells that stand for random blocks."""


def minimap(pattern: AttentionPattern | None, side: float) -> list[Shape]:
    """The map at the origin, ``side`` points wide; nothing for attention without a pattern."""
    if pattern is None:
        return []
    allowed, cell = _allowed(pattern), side / SIDE
    shapes: list[Shape] = [Box(0, 0, side, side, UNSEEN)]
    for query in range(SIDE):
        keys = [key for key in range(SIDE) if allowed(query, key)]
        starts = [key for key in keys if key - 1 not in keys]
        ends = [key for key in keys if key + 1 not in keys]
        for start, end in zip(starts, ends, strict=True):
            high = min(cell + SEAM, side - query * cell)
            shapes.append(Box(start * cell, query * cell, (end - start + 1) * cell, high, SEEN))
    shapes.append(Box(0, 0, side, side, "none", BORDER, line_width=0.6))
    return shapes


def _allowed(pattern: AttentionPattern) -> Callable[[int, int], bool]:
    match pattern:
        case FullAttention():
            return lambda query, key: True
        case CausalAttention():
            return lambda query, key: key <= query
        case SlidingWindow(dilation=dilation):
            step = 1 if dilation == 1 else 2
            return lambda query, key: abs(query - key) <= RADIUS * step and (query - key) % step == 0
        case SlidingWindowGlobal(window=window):
            inner = _allowed(window)
            return lambda query, key: 0 in (query, key) or inner(query, key)
        case BlockSparse(random_blocks=random):
            ends = (0, SIDE - 1)
            return lambda query, key: (
                query in ends
                or key in ends
                or abs(query - key) <= 1
                or (random > 0 and (query, key) in RANDOM)
            )
        case _:
            assert_never(pattern)
