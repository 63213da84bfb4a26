"""Which key blocks a query block attends to, and how often each counts (Zaheer et al. 2020)."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from unmask.spec import BlockSparse

PLANNED_LENGTHS = (1024, 3072, 4096)
"""Lengths, in tokens of whole blocks, whose random blocks come from one plan for long texts."""

FOCUS = 1024
"""Number of tokens from the start of a sequence that this plan draws from."""


@lru_cache(maxsize=64)
def block_counts(pattern: BlockSparse, blocks: int, heads: int) -> NDArray[np.int64]:
    """How often each query block counts each key block, shape (H, blocks, blocks).

    The window and the two global blocks together count once; every random block counts once more, even if
    the window contains it or it was drawn twice.
    """
    number = np.arange(blocks)
    ends = np.isin(number, (0, blocks - 1))
    near = np.abs(number[:, None] - number[None, :]) <= 1
    counts = np.repeat((near | ends[:, None] | ends[None, :])[None].astype(np.int64), heads, axis=0)
    random_HBR = random_blocks(pattern, blocks, heads)
    rows = np.broadcast_to(number[None, 1:-1, None], random_HBR.shape)
    head = np.broadcast_to(np.arange(heads)[:, None, None], random_HBR.shape)
    np.add.at(counts, (head, rows, random_HBR), 1)
    counts.flags.writeable = False
    return counts


def random_blocks(pattern: BlockSparse, blocks: int, heads: int) -> NDArray[np.int64]:
    """The random blocks of every query block except the first and the last, shape (H, blocks - 2, R).

    They are drawn as in the authors' code, so a seed gives the same blocks: one generator serves all heads.
    """
    chosen = np.zeros((heads, blocks - 2, pattern.random_blocks), dtype=np.int64)
    if pattern.seed is None:
        return chosen
    generator = np.random.RandomState(pattern.seed)
    if blocks * pattern.block in PLANNED_LENGTHS:
        for head in range(heads):
            chosen[head] = _long_plan(pattern, generator)[: blocks - 2]
        return chosen
    # Their code also draws for the last block and discards that, which affects no later draw of a layer.
    for row in range(1, blocks - 1):
        for head in range(heads):
            chosen[head, row - 1] = _row(pattern, row, generator)
    return chosen


def _row(pattern: BlockSparse, row: int, generator: np.random.RandomState) -> NDArray[np.int64]:
    end = 5 + 2 * pattern.random_blocks
    fixed = {row - 1, row, row + 1, 0, end - 1}
    if row == 1:
        fixed.add(end - 2)
    if row == end - 2:
        fixed.add(1)
    order = generator.permutation(np.arange(end))
    return np.array([block for block in order if block not in fixed][: pattern.random_blocks], dtype=np.int64)


def _long_plan(pattern: BlockSparse, generator: np.random.RandomState) -> NDArray[np.int64]:
    """One head's plan for a text of ``plan_tokens``; rows of the last two blocks may repeat their window."""
    blocks = pattern.plan_tokens // pattern.block
    middle = np.arange(1, blocks - 1)
    last = (FOCUS // pattern.block if 2 * pattern.block < FOCUS else blocks) - 1
    plan = np.zeros((blocks - 2, pattern.random_blocks), dtype=np.int64)
    for row in range(1, blocks - 1):
        if row > 2 and row in (blocks - 3, blocks - 2):
            choice = middle[:last]
        else:
            choice = np.concatenate((middle[: max(0, min(row - 2, last))], middle[row + 1 : last]))
        plan[row - 1] = generator.permutation(choice)[: pattern.random_blocks]
    return plan
