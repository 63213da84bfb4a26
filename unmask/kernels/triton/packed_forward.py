"""Packed attention in Triton, forward: several short sequences per tile, long ones tile by tile."""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

from unmask.kernels.triton.parts import (
    LOWEST,
    PER_LN,
    keys_of_rows,
    load_rows,
    place_of,
    product,
    scores_of,
    store_rows,
    survivors,
    within,
)


@triton.jit
def forward_short(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    o, lse, slopes, seed, owner, items,
    heads, tokens, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, EXACT: tl.constexpr,
    WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """One program for each head of a group of whole sequences that one tile holds.

    Args:
        q, k, v: packed, (T, H, K) with strides of tokens and heads.
        o: (T, H, K), laid end to end.
        lse: (H, T).
        slopes: of ALiBi, (H,), in units of log 2; anything where there are none.
        seed: one int64; anything without dropout.
        owner: the first token of each token's sequence, (T,).
        items: first token and end of each group.
    """
    program = tl.program_id(0)
    head = program % heads
    start = tl.load(items + 2 * (program // heads))
    end = tl.load(items + 2 * (program // heads) + 1) - start
    rows = tl.arange(0, SIZE)
    token = start.to(tl.int64)
    x_q = load_rows(q + token * q_token + head * q_head, q_token, rows, end, WIDTH, PADDED, False)
    x_k = load_rows(k + token * k_token + head * k_head, k_token, rows, end, WIDTH, PADDED, False)
    x_v = load_rows(v + token * v_token + head * v_head, v_token, rows, end, WIDTH, PADDED, False)
    slope = tl.load(slopes + head) if ALIBI else 0.0
    distance = rows[None, :] - rows[:, None]
    s = scores_of(product(x_q, tl.trans(x_k), EXACT), distance, scale, slope, ALIBI)
    # Rows past the end attend to one another, so that no row is empty.
    of = tl.load(owner + start + rows, mask=rows < end, other=-1)
    seen = of[:, None] == of[None, :]
    if WINDOW:
        seen = seen & within(distance, span, dilation, DILATED, CAUSAL)
    s = tl.where(seen, s, float("-inf"))
    highest = tl.max(s, 1)
    p = tl.math.exp2(s - highest[:, None])
    total = tl.sum(p, 1)
    if DROPOUT:
        keep = survivors(tl.load(seed), head, (start + rows)[:, None], (start + rows)[None, :], dropout)
        p = tl.where(keep, p / (1.0 - dropout), 0.0)
    mixed = product(p.to(x_v.dtype), x_v, EXACT) / total[:, None]
    store_rows(o + (token * heads + head) * WIDTH, heads * WIDTH, rows, end, mixed, WIDTH, PADDED)
    log_sum_exp = (highest + tl.math.log2(total)) / PER_LN
    tl.store(lse + head.to(tl.int64) * tokens + start + rows, log_sum_exp, mask=rows < end)


@triton.jit
def forward_step(
    x_q, highest, total, mixed, k, k_token, v, v_token, slope, drawn, start, head, rows, first, length,
    scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    INSIDE: tl.constexpr, WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr,
    ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add keys from ``first`` on to running maxima, sums and mixes (Milakov & Gimelshein 2018)."""
    columns = first + tl.arange(0, COLUMNS)
    x_k = load_rows(k, k_token, columns, length, WIDTH, PADDED, INSIDE)
    distance = columns[None, :] - rows[:, None]
    s = scores_of(product(x_q, tl.trans(x_k), EXACT), distance, scale, slope, ALIBI)
    if WINDOW:
        s = tl.where(
            (columns[None, :] < length) & within(distance, span, dilation, DILATED, CAUSAL), s, float("-inf")
        )
    elif not INSIDE:
        s = tl.where(columns[None, :] < length, s, float("-inf"))
    higher = tl.maximum(highest, tl.max(s, 1))
    p = tl.math.exp2(s - higher[:, None])
    shrink = tl.math.exp2(highest - higher)
    total = total * shrink + tl.sum(p, 1)
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[:, None], (start + columns)[None, :], dropout)
        p = tl.where(keep, p / (1.0 - dropout), 0.0)
    x_v = load_rows(v, v_token, columns, length, WIDTH, PADDED, INSIDE)
    mixed = mixed * shrink[:, None] + product(p.to(x_v.dtype), x_v, EXACT)
    return higher, total, mixed


@triton.jit
def forward_long(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    o, lse, slopes, seed, items,
    heads, tokens, scale, span, dilation, dropout,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    WINDOW: tl.constexpr, DILATED: tl.constexpr, CAUSAL: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """One program for each head of a tile of queries; it visits the keys that they may see.

    Arguments as for `forward_short`, but ``items``: first token and length of a sequence and the first
    row of a tile of it.
    """
    head, start, length, first, share = place_of(tl.program_id(0), items, heads, SPLIT)
    first += share * ROWS
    if first >= length:
        return
    rows = first + tl.arange(0, ROWS)
    token = start.to(tl.int64)
    x_q = load_rows(q + token * q_token + head * q_head, q_token, rows, length, WIDTH, PADDED, False)
    k += token * k_token + head * k_head
    v += token * v_token + head * v_head
    slope = tl.load(slopes + head) if ALIBI else 0.0
    drawn = tl.load(seed) if DROPOUT else 0
    highest = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    begin, plain, end = keys_of_rows(first, length, span, ROWS, COLUMNS, WINDOW, CAUSAL)
    for at in range(begin, plain, COLUMNS):
        highest, total, mixed = forward_step(
            x_q, highest, total, mixed, k, k_token, v, v_token, slope, drawn, start, head, rows, at, length,
            scale, span, dilation, dropout,
            WIDTH, PADDED, COLUMNS, EXACT, True, False, False, False, ALIBI, DROPOUT,
        )  # fmt: skip
    for at in range(plain, end, COLUMNS):
        highest, total, mixed = forward_step(
            x_q, highest, total, mixed, k, k_token, v, v_token, slope, drawn, start, head, rows, at, length,
            scale, span, dilation, dropout,
            WIDTH, PADDED, COLUMNS, EXACT, False, WINDOW, DILATED, CAUSAL, ALIBI, DROPOUT,
        )  # fmt: skip
    # Rows past the end may have had no key.
    total = tl.where(rows < length, total, 1.0)
    mixed = mixed / total[:, None]
    store_rows(o + (token * heads + head) * WIDTH, heads * WIDTH, rows, length, mixed, WIDTH, PADDED)
    log_sum_exp = (highest + tl.math.log2(total)) / PER_LN
    tl.store(lse + head.to(tl.int64) * tokens + start + rows, log_sum_exp, mask=rows < length)
