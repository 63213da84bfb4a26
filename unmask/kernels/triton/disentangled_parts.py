"""Parts of disentangled attention in Triton shared by forward and backward.

A *band* holds the product of each token with the table's row of each distance: a row a token, a column a
distance ``query - key``, falling from ``high``, at and beyond which all distances read one row, to
``high - last``, at and below which they do. The position terms of a tile are then a skewed rectangle of the
queries' band and one of the keys', read without a table of slots. A tile wholly beyond either end reads one
number a query and one a key, and costs what plain attention does.

Scores and bands are in units of log 2, as those of packed attention are.
"""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

BEHIND = tl.constexpr(0)
"""Kind of tile: every distance is ``high`` or more, queries far after keys; no end of a text in it."""
NEAR = tl.constexpr(1)
"""Kind of tile: any other."""
AHEAD = tl.constexpr(2)
"""Kind of tile: every distance is ``high - last`` or less; no end of a text in it."""


@triton.jit
def far_tiles(first, length, distance, STEP: tl.constexpr):
    """How many steps from the beginning stand at ``distance`` or farther before the token ``first``."""
    return tl.minimum(tl.maximum(first - distance + 1, 0), length) // STEP


@triton.jit
def near_end(last_token, length, distance, STEP: tl.constexpr):
    """The first step whose tokens all stand ``distance`` or farther after ``last_token``."""
    return tl.minimum(last_token + distance + STEP - 1, length + STEP - 1) // STEP


@triton.jit
def near_step(number, begin, end, length, STEP: tl.constexpr):
    """Where the step of this number is: those from ``begin`` to ``end``, then an unfinished last one."""
    return tl.where(number < end - begin, begin + number, length // STEP) * STEP


@triton.jit
def near_steps(begin, end, length, STEP: tl.constexpr):
    """How many steps `near_step` has."""
    unfinished = (length % STEP != 0) & (end <= length // STEP)
    return end - begin + unfinished.to(tl.int32)


@triton.jit
def read_band(band, owner, column, last, columns):
    """A rectangle of a band: a row of it for each of ``owner``, a column for each distance.

    All owners must be tokens of the text: a mask of the rectangle would take registers that addresses need.
    """
    return tl.load(band + (owner * columns + tl.minimum(tl.maximum(column, 0), last)))


@triton.jit
def write_band(band, gradient, owner, column, begin, end, last, columns):
    """Write the cells of a rectangle from column ``begin`` of a row to ``end``, none of them one of the ends.

    A cell has one writer, since one tile holds a pair of tokens. Ends have many, and are therefore summed:
    returns the sums of each row at its first and its last column.
    """
    inner = (column - begin).to(tl.uint32) < (end - begin).to(tl.uint32)
    tl.store(band + (owner * columns + column), gradient.to(band.dtype.element_ty), mask=inner)
    highest = tl.sum(tl.where(column <= 0, gradient, 0.0), 1)
    return highest, tl.sum(tl.where(column >= last, gradient, 0.0), 1)


@triton.jit
def read_end(ends, tokens_apart, at, length, KIND: tl.constexpr):
    """What each token reads in tiles beyond one end of its band; ``ends`` has a row of tokens for each."""
    end = ends if KIND == BEHIND else ends + tokens_apart
    return tl.load(end + at, mask=at < length, other=0.0).to(tl.float32)
