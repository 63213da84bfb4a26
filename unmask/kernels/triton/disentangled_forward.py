"""Disentangled attention in Triton, forward."""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

from unmask.kernels.triton.parts import (
    AHEAD,
    BEHIND,
    LOWEST,
    NEAR,
    PER_LN,
    far_tiles,
    load_rows,
    near_end,
    near_step,
    near_steps,
    place_of,
    product,
    read_band,
    read_end,
    store_rows,
    survivors,
)


@triton.jit
def forward_step(
    x_q, highest, total, mixed, k, k_token, v, v_token, c, d, d_ends, shift, drawn, start, head, rows, first,
    length, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr, KIND: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add keys from ``first`` on to running maxima, sums and mixes (Milakov & Gimelshein 2018).

    ``shift`` is what beyond the ends of the band a query adds to all its scores.
    """
    keys = first + tl.arange(0, STEP)
    x_k = load_rows(k, k_token, keys, length, WIDTH, WIDTH, KIND != NEAR)
    s = product(x_q, tl.trans(x_k), EXACT) * scale
    if KIND == NEAR:
        row, key = tl.minimum(rows, length - 1), tl.minimum(keys, length - 1)
        if HAS_C:
            column = (high - row)[:, None] + key[None, :]
            s += read_band(c, row[:, None], column, last, columns).to(tl.float32)
        if HAS_D:
            turned = read_band(d, key[:, None], (high + key)[:, None] - row[None, :], last, columns)
            s += tl.trans(turned).to(tl.float32)
        s = tl.where(keys[None, :] < length, s, float("-inf"))
    elif HAS_D:
        s += read_end(d_ends, tokens, keys, length, KIND)[None, :]
    higher = tl.maximum(highest, tl.max(s, 1) + shift)
    p = tl.math.exp2(s + (shift - higher)[:, None])
    shrink = tl.math.exp2(highest - higher)
    total = total * shrink + tl.sum(p, 1)
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[:, None], (start + keys)[None, :], dropout)
        p = tl.where(keep, p / (1.0 - dropout), 0.0)
    x_v = load_rows(v, v_token, keys, length, WIDTH, WIDTH, KIND != NEAR)
    mixed = mixed * shrink[:, None] + product(p.to(x_v.dtype), x_v, EXACT)
    return higher, total, mixed


@triton.jit
def forward(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    c, d, c_ends, d_ends, o, lse, seed, items,
    heads, first_head, some_heads, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """One program for each of some heads of a tile of queries.

    Args:
        q, k, v: packed, (T, H, K) with strides of tokens and heads.
        c, d: bands of queries and keys for these heads, (h, T, columns); anything where there are none.
        c_ends, d_ends: their first and last columns, (h, 2, T).
        o: (T, H, K), laid end to end.
        lse: (H, T).
        seed: one int64; anything without dropout.
        items: first token and length of a sequence and the first row of a tile of it.
    """
    place, start, length, first, _ = place_of(tl.program_id(0), items, some_heads, 1)
    head = first_head + place
    token = start.to(tl.int64)
    band_row = place.to(tl.int64) * tokens + token
    q += token * q_token + head * q_head
    k += token * k_token + head * k_head
    v += token * v_token + head * v_head
    c += band_row * columns
    d += band_row * columns
    c_ends += band_row + place.to(tl.int64) * tokens
    d_ends += band_row + place.to(tl.int64) * tokens
    drawn = tl.load(seed) if DROPOUT else 0
    rows = first + tl.arange(0, TILE)
    x_q = load_rows(q, q_token, rows, length, WIDTH, WIDTH, False)
    highest = tl.full([TILE], LOWEST, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, WIDTH], tl.float32)
    none = tl.zeros([TILE], tl.float32)

    near = far_tiles(first, length, high, STEP)
    shift = read_end(c_ends, tokens, rows, length, BEHIND) if HAS_C else none
    for at in range(0, near * STEP, STEP):
        highest, total, mixed = forward_step(
            x_q, highest, total, mixed, k, k_token, v, v_token, c, d, d_ends, shift, drawn, start, head, rows,
            at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, BEHIND, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    ahead = near_end(first + TILE - 1, length, last - high, STEP)
    for number in range(0, near_steps(near, ahead, length, STEP)):
        highest, total, mixed = forward_step(
            x_q, highest, total, mixed, k, k_token, v, v_token, c, d, d_ends, none, drawn, start, head, rows,
            near_step(number, near, ahead, length, STEP), length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, NEAR, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    shift = read_end(c_ends, tokens, rows, length, AHEAD) if HAS_C else none
    for at in range(ahead * STEP, length // STEP * STEP, STEP):
        highest, total, mixed = forward_step(
            x_q, highest, total, mixed, k, k_token, v, v_token, c, d, d_ends, shift, drawn, start, head, rows,
            at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, AHEAD, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip

    mixed = mixed / total[:, None]
    store_rows(o + (token * heads + head) * WIDTH, heads * WIDTH, rows, length, mixed, WIDTH, WIDTH)
    log_sum_exp = (highest + tl.math.log2(total)) / PER_LN
    tl.store(lse + head.to(tl.int64) * tokens + start + rows, log_sum_exp, mask=rows < length)
