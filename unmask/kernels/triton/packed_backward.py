"""Packed attention in Triton, backward: every gradient has one writer, so results are reproducible.

With p the probabilities, dS = p (dP - delta), delta being the row's sum of o dO less the gradient of its
log-sum-exp; dQ = dS K, dK = dS^T Q, dV = p^T dO (Dao 2023, with the log-sum-exp's term added). Short groups
do everything in one program. Long sequences take two launches: tiles of queries give dQ and delta, tiles
of keys then dK and dV.
"""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

from unmask.kernels.triton.parts import (
    PER_LN,
    keys_of_rows,
    load_rows,
    place_of,
    product,
    rows_of_keys,
    scores_of,
    store_rows,
    survivors,
    within,
)


@triton.jit
def backward_short(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    d_o, lse, d_lse, d_q, d_k, d_v, slopes, seed, owner, items,
    heads, tokens, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, EXACT: tl.constexpr,
    WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """All gradients of one head of a group of whole sequences; see `forward_short`.

    ``d_o``, ``d_q``, ``d_k``, ``d_v`` are laid end to end, (T, H, K); ``lse`` and ``d_lse`` are (H, T).
    """
    program = tl.program_id(0)
    head = program % heads
    start = tl.load(items + 2 * (program // heads))
    end = tl.load(items + 2 * (program // heads) + 1) - start
    rows = tl.arange(0, SIZE)
    token = start.to(tl.int64)
    out_offset = (token * heads + head) * WIDTH
    x_q = load_rows(q + token * q_token + head * q_head, q_token, rows, end, WIDTH, PADDED, False)
    x_k = load_rows(k + token * k_token + head * k_head, k_token, rows, end, WIDTH, PADDED, False)
    slope = tl.load(slopes + head) if ALIBI else 0.0
    distance = rows[None, :] - rows[:, None]
    s = scores_of(product(x_q, tl.trans(x_k), EXACT), distance, scale, slope, ALIBI)
    of = tl.load(owner + start + rows, mask=rows < end, other=-1)
    seen = of[:, None] == of[None, :]
    if WINDOW:
        seen = seen & within(distance, span, dilation, DILATED, CAUSAL)
    at = head.to(tl.int64) * tokens + start + rows
    # An infinite log-sum-exp gives rows past the end probability 0.
    total = tl.load(lse + at, mask=rows < end, other=float("inf")) * PER_LN
    p = tl.math.exp2(tl.where(seen, s - total[:, None], float("-inf")))
    x_o = load_rows(d_o + out_offset, heads * WIDTH, rows, end, WIDTH, PADDED, False)
    x_v = load_rows(v + token * v_token + head * v_head, v_token, rows, end, WIDTH, PADDED, False)
    d_p = product(x_o, tl.trans(x_v), EXACT)
    mixing = p
    if DROPOUT:
        keep = survivors(tl.load(seed), head, (start + rows)[:, None], (start + rows)[None, :], dropout)
        mixing = tl.where(keep, p / (1.0 - dropout), 0.0)
        d_p = tl.where(keep, d_p / (1.0 - dropout), 0.0)
    g_v = product(tl.trans(mixing.to(x_o.dtype)), x_o, EXACT)
    store_rows(d_v + out_offset, heads * WIDTH, rows, end, g_v, WIDTH, PADDED)
    delta = tl.sum(p * d_p, 1) - tl.load(d_lse + at, mask=rows < end, other=0.0)
    d_s = (p * (d_p - delta[:, None])).to(x_q.dtype)
    back = scale / PER_LN
    g_q = product(d_s, x_k, EXACT) * back
    store_rows(d_q + out_offset, heads * WIDTH, rows, end, g_q, WIDTH, PADDED)
    g_k = product(tl.trans(d_s), x_q, EXACT) * back
    store_rows(d_k + out_offset, heads * WIDTH, rows, end, g_k, WIDTH, PADDED)


@triton.jit
def rows_step(
    g_q, x_q, x_o, total, delta, k, k_token, v, v_token, slope, drawn, start, head, rows, first, length,
    scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    INSIDE: tl.constexpr, WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr,
    ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add the contribution of keys from ``first`` on to the gradient of queries."""
    columns = first + tl.arange(0, COLUMNS)
    x_k = load_rows(k, k_token, columns, length, WIDTH, PADDED, INSIDE)
    distance = columns[None, :] - rows[:, None]
    s = scores_of(product(x_q, tl.trans(x_k), EXACT), distance, scale, slope, ALIBI) - total[:, None]
    if WINDOW:
        s = tl.where(
            (columns[None, :] < length) & within(distance, span, dilation, DILATED, CAUSAL), s, float("-inf")
        )
    elif not INSIDE:
        s = tl.where(columns[None, :] < length, s, float("-inf"))
    p = tl.math.exp2(s)
    x_v = load_rows(v, v_token, columns, length, WIDTH, PADDED, INSIDE)
    d_p = product(x_o, tl.trans(x_v), EXACT)
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[:, None], (start + columns)[None, :], dropout)
        d_p = tl.where(keep, d_p / (1.0 - dropout), 0.0)
    d_s = (p * (d_p - delta[:, None])).to(x_k.dtype)
    return g_q + product(d_s, x_k, EXACT)


@triton.jit
def backward_rows(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    o, d_o, lse, d_lse, delta, d_q, slopes, seed, items,
    heads, tokens, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """The gradient of one head of a tile of queries, and their ``delta``, (H, T); see `forward_long`."""
    head, start, length, first, share = place_of(tl.program_id(0), items, heads, SPLIT)
    first += share * ROWS
    if first >= length:
        return
    rows = first + tl.arange(0, ROWS)
    token = start.to(tl.int64)
    out_offset = (token * heads + head) * WIDTH
    x_q = load_rows(q + token * q_token + head * q_head, q_token, rows, length, WIDTH, PADDED, False)
    x_o = load_rows(d_o + out_offset, heads * WIDTH, rows, length, WIDTH, PADDED, False)
    mixed = load_rows(o + out_offset, heads * WIDTH, rows, length, WIDTH, PADDED, False)
    at = head.to(tl.int64) * tokens + start + rows
    less = tl.sum(mixed.to(tl.float32) * x_o.to(tl.float32), 1)
    less = less - tl.load(d_lse + at, mask=rows < length, other=0.0)
    tl.store(delta + at, less, mask=rows < length)
    total = tl.load(lse + at, mask=rows < length, other=float("inf")) * PER_LN
    k += token * k_token + head * k_head
    v += token * v_token + head * v_head
    slope = tl.load(slopes + head) if ALIBI else 0.0
    drawn = tl.load(seed) if DROPOUT else 0
    g_q = tl.zeros([ROWS, PADDED], tl.float32)
    begin, plain, end = keys_of_rows(first, length, span, ROWS, COLUMNS, WINDOW, CAUSAL)
    for place in range(begin, plain, COLUMNS):
        g_q = rows_step(
            g_q, x_q, x_o, total, less, k, k_token, v, v_token, slope, drawn, start, head, rows,
            place, length, scale, span, dilation, dropout,
            WIDTH, PADDED, COLUMNS, EXACT, True, False, False, False, ALIBI, DROPOUT,
        )  # fmt: skip
    for place in range(plain, end, COLUMNS):
        g_q = rows_step(
            g_q, x_q, x_o, total, less, k, k_token, v, v_token, slope, drawn, start, head, rows,
            place, length, scale, span, dilation, dropout,
            WIDTH, PADDED, COLUMNS, EXACT, False, WINDOW, DILATED, CAUSAL, ALIBI, DROPOUT,
        )  # fmt: skip
    store_rows(d_q + out_offset, heads * WIDTH, rows, length, g_q * (scale / PER_LN), WIDTH, PADDED)


@triton.jit
def columns_step(
    g_k, g_v, x_k, x_v, q, q_token, d_o, o_token, lse, delta, slope, drawn, start, head, columns, first,
    length, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    INSIDE: tl.constexpr, WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr,
    ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add the contribution of queries from ``first`` on to the gradients of keys and values, transposed."""
    rows = first + tl.arange(0, ROWS)
    x_q = load_rows(q, q_token, rows, length, WIDTH, PADDED, INSIDE)
    distance = columns[:, None] - rows[None, :]
    s = scores_of(product(x_k, tl.trans(x_q), EXACT), distance, scale, slope, ALIBI)
    # Rows past the end have an infinite log-sum-exp, so their probability is 0.
    total = tl.load(lse + rows, mask=rows < length, other=float("inf")) * PER_LN
    s = s - total[None, :]
    if WINDOW:
        s = tl.where(within(distance, span, dilation, DILATED, CAUSAL), s, float("-inf"))
    p = tl.math.exp2(s)
    x_o = load_rows(d_o, o_token, rows, length, WIDTH, PADDED, INSIDE)
    d_p = product(x_v, tl.trans(x_o), EXACT)
    mixing = p
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[None, :], (start + columns)[:, None], dropout)
        mixing = tl.where(keep, p / (1.0 - dropout), 0.0)
        d_p = tl.where(keep, d_p / (1.0 - dropout), 0.0)
    g_v = g_v + product(mixing.to(x_o.dtype), x_o, EXACT)
    less = tl.load(delta + rows, mask=rows < length, other=0.0)
    d_s = (p * (d_p - less[None, :])).to(x_q.dtype)
    return g_k + product(d_s, x_q, EXACT), g_v


@triton.jit
def backward_columns(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    d_o, lse, delta, d_k, d_v, slopes, seed, items,
    heads, tokens, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """The gradients of one head of a tile of keys and values, after `backward_rows`; items are its own."""
    head, start, length, first, share = place_of(tl.program_id(0), items, heads, SPLIT)
    first += share * COLUMNS
    if first >= length:
        return
    columns = first + tl.arange(0, COLUMNS)
    token = start.to(tl.int64)
    out_offset = (token * heads + head) * WIDTH
    x_k = load_rows(k + token * k_token + head * k_head, k_token, columns, length, WIDTH, PADDED, False)
    x_v = load_rows(v + token * v_token + head * v_head, v_token, columns, length, WIDTH, PADDED, False)
    q += token * q_token + head * q_head
    d_o += out_offset
    lse += head.to(tl.int64) * tokens + start
    delta += head.to(tl.int64) * tokens + start
    slope = tl.load(slopes + head) if ALIBI else 0.0
    drawn = tl.load(seed) if DROPOUT else 0
    g_k = tl.zeros([COLUMNS, PADDED], tl.float32)
    g_v = tl.zeros([COLUMNS, PADDED], tl.float32)
    begin, plain, end = rows_of_keys(first, length, span, COLUMNS, ROWS, WINDOW, CAUSAL)
    for place in range(begin, plain, ROWS):
        g_k, g_v = columns_step(
            g_k, g_v, x_k, x_v, q, q_token, d_o, heads * WIDTH, lse, delta, slope, drawn, start, head,
            columns, place, length, scale, span, dilation, dropout,
            WIDTH, PADDED, ROWS, EXACT, True, False, False, False, ALIBI, DROPOUT,
        )  # fmt: skip
    for place in range(plain, end, ROWS):
        g_k, g_v = columns_step(
            g_k, g_v, x_k, x_v, q, q_token, d_o, heads * WIDTH, lse, delta, slope, drawn, start, head,
            columns, place, length, scale, span, dilation, dropout,
            WIDTH, PADDED, ROWS, EXACT, False, WINDOW, DILATED, CAUSAL, ALIBI, DROPOUT,
        )  # fmt: skip
    store_rows(d_k + out_offset, heads * WIDTH, columns, length, g_k * (scale / PER_LN), WIDTH, PADDED)
    store_rows(d_v + out_offset, heads * WIDTH, columns, length, g_v, WIDTH, PADDED)
