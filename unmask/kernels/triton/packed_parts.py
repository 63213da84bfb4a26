"""Parts of packed attention in Triton shared by forward and backward.

Scores are in units of log 2, since the hardware's exponential has base 2: ``scale`` and ``slope`` come
multiplied by 1 / ln 2, and a row's sum is kept as the natural logarithm that others expect.
"""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

PER_LN = tl.constexpr(1.4426950408889634)
"""1 / ln 2."""

LOWEST = tl.constexpr(-1.0e30)
"""Where a running maximum starts: finite, so that a tile with all keys masked gives no NaN."""


@triton.jit
def place_of(program, items, heads, SPLIT: tl.constexpr):
    """The head of a program and its share of a tile: first token, length and first row of its sequence.

    Heads run fastest, for those of one tile have about the same cost and touch the same lines of memory.
    A tile of the plan is ``SPLIT`` tiles of the kernel.
    """
    head = program % heads
    share = program // heads
    item = items + 3 * (share // SPLIT)
    return head, tl.load(item), tl.load(item + 1), tl.load(item + 2), share % SPLIT


@triton.jit
def load_rows(base, token_stride, rows, end, WIDTH: tl.constexpr, PADDED: tl.constexpr, INSIDE: tl.constexpr):
    """Rows of one head, zero from row ``end`` on; ``INSIDE`` says that all rows are before ``end``."""
    wide = tl.arange(0, PADDED)
    at = base + rows[:, None] * token_stride + wide[None, :]
    if WIDTH != PADDED:
        return tl.load(at, mask=(rows[:, None] < end) & (wide[None, :] < WIDTH), other=0.0)
    if INSIDE:
        return tl.load(at)
    return tl.load(at, mask=rows[:, None] < end, other=0.0)


@triton.jit
def store_rows(base, token_stride, rows, end, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The inverse of `load_rows`, in the dtype of the memory."""
    wide = tl.arange(0, PADDED)
    at = base + rows[:, None] * token_stride + wide[None, :]
    mask = rows[:, None] < end
    if WIDTH != PADDED:
        mask = mask & (wide[None, :] < WIDTH)
    tl.store(at, x.to(base.dtype.element_ty), mask=mask)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """``a b`` accumulated in float32; ``EXACT`` keeps float32 inputs from being rounded to 10 bits."""
    if EXACT:
        return tl.dot(a, b, input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def scores_of(s, distance, scale, slope, ALIBI: tl.constexpr):
    """Scores from content products; ``distance`` is key minus query, of the same shape."""
    s = s * scale
    if ALIBI:
        s = s - slope * tl.abs(distance).to(tl.float32)
    return s


@triton.jit
def within(distance, span, dilation, DILATED: tl.constexpr, CAUSAL: tl.constexpr):
    """Whether a key at this distance is in the window, or, if ``CAUSAL``, not after the query."""
    if CAUSAL:
        return distance <= 0
    near = tl.abs(distance) <= span
    if DILATED:
        near = near & (distance % dilation == 0)
    return near


@triton.jit
def survivors(seed, head, rows, columns, dropout):
    """Which probabilities are not dropped: a function of query, key, head and seed alone.

    A counter-based generator (Salmon et al. 2011), so that the backward draws the same as the
    forward, with any tiles. ``rows`` and ``columns`` are tokens of the batch, shaped to be broadcast.
    """
    nothing = rows * 0 + columns * 0
    drawn, _, _, _ = tl.philox(seed, nothing + rows, nothing + columns, nothing + head, nothing)
    return tl.random.uint_to_uniform_float(drawn) >= dropout


@triton.jit
def keys_of_rows(
    first, length, span, ROWS: tl.constexpr, STEP: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr
):
    """What rows from ``first`` on must visit on the other side, in steps: begin, end of plain steps, end.

    Steps up to the second need no mask. The same holds for keys that visit queries, but for ``CAUSAL``.
    """
    if CAUSAL:
        return 0, first // STEP * STEP, tl.minimum(first + ROWS, length)
    if WINDOW:
        begin = tl.maximum(first - span, 0) // STEP * STEP
        return begin, begin, tl.minimum(first + ROWS + span, length)
    return 0, length // STEP * STEP, length


@triton.jit
def rows_of_keys(
    first, length, span, COLUMNS: tl.constexpr, STEP: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr
):
    """The same for keys from ``first`` on; causally, they are visited by the queries from theirs on."""
    if CAUSAL:
        begin = first // STEP * STEP
        return begin, begin, length
    return keys_of_rows(first, length, span, COLUMNS, STEP, WINDOW, False)
