"""Disentangled attention in Triton, backward: scores are recomputed, without atomic additions."""

# mypy: ignore-errors
# ruff: noqa: PLR0917
# Triton's language is not typed Python: what a name holds depends on the compilation. It has no structures
# either, so arguments are many.

import triton
import triton.language as tl

from unmask.kernels.triton.parts import (
    AHEAD,
    BEHIND,
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
    write_band,
)


@triton.jit
def queries_step(
    g_q, g_highest, g_lowest, x_q, x_o, less, shift, k, k_token, v, v_token, c, d, d_ends, g_c,
    drawn, start, head, rows, first, length, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr, KIND: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add the contribution of keys from ``first`` on to the gradients of queries and of their band's ends.

    ``shift`` is what a query adds to all its scores, its sum taken off.
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
    p = tl.math.exp2(s + shift[:, None])
    x_v = load_rows(v, v_token, keys, length, WIDTH, WIDTH, KIND != NEAR)
    g_p = product(x_o, tl.trans(x_v), EXACT)
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[:, None], (start + keys)[None, :], dropout)
        g_p = tl.where(keep, g_p / (1.0 - dropout), 0.0)
    g_s = p * (g_p - less[:, None])
    g_q += product(g_s.to(x_k.dtype), x_k, EXACT)
    if HAS_C:
        if KIND == NEAR:
            column = (high - rows)[:, None] + keys[None, :]
            # Keys of the text end at a column of their own in each row; queries beyond it write nothing.
            end = tl.where(rows < length, tl.minimum(last, high - rows + length), 1)
            more, fewer = write_band(
                g_c, g_s, rows[:, None], column, 1, tl.maximum(end, 1)[:, None], last, columns
            )
            g_highest += more
            g_lowest += fewer
        elif KIND == BEHIND:
            g_highest += tl.sum(g_s, 1)
        else:
            g_lowest += tl.sum(g_s, 1)
    return g_q, g_highest, g_lowest


@triton.jit
def backward_queries(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    c, d, c_ends, d_ends, g_o, lse, delta, g_q, g_c, seed, items,
    heads, first_head, some_heads, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The content part of the gradient of a tile of queries, and the gradient of its rows of ``c``.

    Arguments as for the forward, and:
        g_o: gradient of the result, (T, H, K), contiguous.
        lse: of the forward, (H, T).
        delta: the sum of gradient times result, less the gradient of the log-sum-exp, (H, T).
        g_q: (h, T, K) for these heads.
        g_c: (h, T, columns), zero where no program writes.
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
    g_c += band_row * columns
    c_ends += band_row + place.to(tl.int64) * tokens
    d_ends += band_row + place.to(tl.int64) * tokens
    drawn = tl.load(seed) if DROPOUT else 0
    rows = first + tl.arange(0, TILE)
    head_offset = head.to(tl.int64) * tokens + start
    # Rows past the end have an infinite log-sum-exp, so their probability is 0.
    total = tl.load(lse + head_offset + rows, mask=rows < length, other=float("inf")) * PER_LN
    less = tl.load(delta + head_offset + rows, mask=rows < length, other=0.0)
    x_q = load_rows(q, q_token, rows, length, WIDTH, WIDTH, False)
    x_o = load_rows(g_o + (token * heads + head) * WIDTH, heads * WIDTH, rows, length, WIDTH, WIDTH, False)
    gradient = tl.zeros([TILE, WIDTH], tl.float32)
    highest = tl.zeros([TILE], tl.float32)
    lowest = tl.zeros([TILE], tl.float32)

    near = far_tiles(first, length, high, STEP)
    shift = read_end(c_ends, tokens, rows, length, BEHIND) - total if HAS_C else -total
    for at in range(0, near * STEP, STEP):
        gradient, highest, lowest = queries_step(
            gradient, highest, lowest, x_q, x_o, less, shift, k, k_token, v, v_token, c, d, d_ends, g_c,
            drawn, start, head, rows, at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, BEHIND, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    ahead = near_end(first + TILE - 1, length, last - high, STEP)
    for number in range(0, near_steps(near, ahead, length, STEP)):
        gradient, highest, lowest = queries_step(
            gradient, highest, lowest, x_q, x_o, less, -total, k, k_token, v, v_token, c, d, d_ends, g_c,
            drawn, start, head, rows, near_step(number, near, ahead, length, STEP), length, tokens, columns,
            high, last, scale, dropout,
            WIDTH, STEP, EXACT, NEAR, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    shift = read_end(c_ends, tokens, rows, length, AHEAD) - total if HAS_C else -total
    for at in range(ahead * STEP, length // STEP * STEP, STEP):
        gradient, highest, lowest = queries_step(
            gradient, highest, lowest, x_q, x_o, less, shift, k, k_token, v, v_token, c, d, d_ends, g_c,
            drawn, start, head, rows, at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, AHEAD, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip

    if HAS_C:
        ends = g_c + rows * columns
        tl.store(ends, highest.to(g_c.dtype.element_ty), mask=rows < length)
        tl.store(ends + last, lowest.to(g_c.dtype.element_ty), mask=rows < length)
    store_rows(g_q + band_row * WIDTH, WIDTH, rows, length, gradient * (scale / PER_LN), WIDTH, WIDTH)


@triton.jit
def keys_step(
    g_k, g_v, g_highest, g_lowest, x_k, x_v, shift, q, q_token, g_o, o_token, lse, delta, c, d, c_ends, g_d,
    drawn, start, head, keys, first, length, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr, KIND: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add the contribution of queries from ``first`` on to the gradients of keys and values, transposed.

    ``shift`` is what beyond the ends of the band a key adds to all its scores.
    """
    rows = first + tl.arange(0, STEP)
    x_q = load_rows(q, q_token, rows, length, WIDTH, WIDTH, KIND != NEAR)
    s = product(x_k, tl.trans(x_q), EXACT) * scale
    total = tl.load(lse + rows, mask=rows < length, other=float("inf")) * PER_LN
    if KIND == NEAR:
        row, key = tl.minimum(rows, length - 1), tl.minimum(keys, length - 1)
        if HAS_C:
            turned = read_band(c, row[:, None], (high - row)[:, None] + key[None, :], last, columns)
            s += tl.trans(turned).to(tl.float32)
        if HAS_D:
            column = (high + key)[:, None] - row[None, :]
            s += read_band(d, key[:, None], column, last, columns).to(tl.float32)
    else:
        if HAS_C:
            total -= read_end(c_ends, tokens, rows, length, KIND)
        if HAS_D:
            s += shift[:, None]
    p = tl.math.exp2(s - total[None, :])
    x_o = load_rows(g_o, o_token, rows, length, WIDTH, WIDTH, KIND != NEAR)
    g_p = product(x_v, tl.trans(x_o), EXACT)
    mixing = p
    if DROPOUT:
        keep = survivors(drawn, head, (start + rows)[None, :], (start + keys)[:, None], dropout)
        mixing = tl.where(keep, p / (1.0 - dropout), 0.0)
        g_p = tl.where(keep, g_p / (1.0 - dropout), 0.0)
    g_v += product(mixing.to(x_o.dtype), x_o, EXACT)
    less = tl.load(delta + rows, mask=rows < length, other=0.0)
    g_s = p * (g_p - less[None, :])
    g_k += product(g_s.to(x_q.dtype), x_q, EXACT)
    if HAS_D:
        if KIND == NEAR:
            column = (high + keys)[:, None] - rows[None, :]
            begin = tl.maximum(1, high + keys - length + 1)
            end = tl.where(keys < length, tl.maximum(last, begin), begin)
            more, fewer = write_band(
                g_d, g_s, keys[:, None], column, begin[:, None], end[:, None], last, columns
            )
            g_highest += more
            g_lowest += fewer
        elif KIND == BEHIND:
            g_highest += tl.sum(g_s, 1)
        else:
            g_lowest += tl.sum(g_s, 1)
    return g_k, g_v, g_highest, g_lowest


@triton.jit
def backward_keys(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head,
    c, d, c_ends, d_ends, g_o, lse, delta, g_k, g_v, g_d, seed, items,
    heads, first_head, some_heads, tokens, columns, high, last, scale, dropout,
    WIDTH: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr,
    HAS_C: tl.constexpr, HAS_D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The content part of the gradients of a tile of keys and values, and the gradient of its rows of ``d``.

    As `backward_queries`, with queries and keys exchanged: queries far behind the keys come last.
    """
    place, start, length, first, _ = place_of(tl.program_id(0), items, some_heads, 1)
    head = first_head + place
    token = start.to(tl.int64)
    band_row = place.to(tl.int64) * tokens + token
    q += token * q_token + head * q_head
    k += token * k_token + head * k_head
    v += token * v_token + head * v_head
    g_o += (token * heads + head) * WIDTH
    c += band_row * columns
    d += band_row * columns
    g_d += band_row * columns
    c_ends += band_row + place.to(tl.int64) * tokens
    d_ends += band_row + place.to(tl.int64) * tokens
    lse += head.to(tl.int64) * tokens + start
    delta += head.to(tl.int64) * tokens + start
    drawn = tl.load(seed) if DROPOUT else 0
    keys = first + tl.arange(0, TILE)
    x_k = load_rows(k, k_token, keys, length, WIDTH, WIDTH, False)
    x_v = load_rows(v, v_token, keys, length, WIDTH, WIDTH, False)
    gradient_k = tl.zeros([TILE, WIDTH], tl.float32)
    gradient_v = tl.zeros([TILE, WIDTH], tl.float32)
    highest = tl.zeros([TILE], tl.float32)
    lowest = tl.zeros([TILE], tl.float32)
    none = tl.zeros([TILE], tl.float32)

    near = far_tiles(first, length, last - high, STEP)
    shift = read_end(d_ends, tokens, keys, length, AHEAD) if HAS_D else none
    for at in range(0, near * STEP, STEP):
        gradient_k, gradient_v, highest, lowest = keys_step(
            gradient_k, gradient_v, highest, lowest, x_k, x_v, shift, q, q_token, g_o, heads * WIDTH, lse,
            delta, c, d, c_ends, g_d,
            drawn, start, head, keys, at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, AHEAD, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    behind = near_end(first + TILE - 1, length, high, STEP)
    for number in range(0, near_steps(near, behind, length, STEP)):
        gradient_k, gradient_v, highest, lowest = keys_step(
            gradient_k, gradient_v, highest, lowest, x_k, x_v, none, q, q_token, g_o, heads * WIDTH, lse,
            delta, c, d, c_ends, g_d,
            drawn, start, head, keys, near_step(number, near, behind, length, STEP), length, tokens, columns,
            high, last, scale, dropout,
            WIDTH, STEP, EXACT, NEAR, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip
    shift = read_end(d_ends, tokens, keys, length, BEHIND) if HAS_D else none
    for at in range(behind * STEP, length // STEP * STEP, STEP):
        gradient_k, gradient_v, highest, lowest = keys_step(
            gradient_k, gradient_v, highest, lowest, x_k, x_v, shift, q, q_token, g_o, heads * WIDTH, lse,
            delta, c, d, c_ends, g_d,
            drawn, start, head, keys, at, length, tokens, columns, high, last, scale, dropout,
            WIDTH, STEP, EXACT, BEHIND, HAS_C, HAS_D, DROPOUT,
        )  # fmt: skip

    if HAS_D:
        ends = g_d + keys * columns
        tl.store(ends, highest.to(g_d.dtype.element_ty), mask=keys < length)
        tl.store(ends + last, lowest.to(g_d.dtype.element_ty), mask=keys < length)
    scaled = gradient_k * (scale / PER_LN)
    store_rows(g_k + band_row * WIDTH, WIDTH, keys, length, scaled, WIDTH, WIDTH)
    store_rows(g_v + band_row * WIDTH, WIDTH, keys, length, gradient_v, WIDTH, WIDTH)
