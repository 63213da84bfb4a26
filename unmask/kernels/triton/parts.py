"""Parts of attention in Triton shared by forward and backward.

Scores are in units of log 2, since the hardware's exponential has base 2: ``scale`` and ``slope`` come
multiplied by 1 / ln 2, and a row's sum is kept as the natural logarithm that others expect.

Disentangled attention reads *bands*. A band holds the product of each token with the table's row of each
distance, in the same units: a row a token, a column a distance ``query - key``, falling from ``high``, at
and beyond which all distances read one row, to ``high - last``, at and below which they do. The position
terms of a tile are then a skewed rectangle of the queries' band and one of the keys', read without a table
of slots. A tile wholly beyond either end reads one number a query and one a key, and costs what plain
attention does.
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
