"""Packed attention in Triton as two custom torch operators, which `torch.compile` treats as opaque."""

# ruff: noqa: PLR0917
# An operator takes its tensors one by one.

import math
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from unmask.kernels.triton import packed_backward, packed_forward
from unmask.kernels.triton.packed_tiles import TILE, Burden, Path, burden_of, long_tiles, short_tiles
from unmask.kernels.triton.parts import PER_LN

KERNELS: dict[Path, Any] = {
    "forward_short": packed_forward.forward_short,
    "forward_long": packed_forward.forward_long,
    "backward_short": packed_backward.backward_short,
    "backward_rows": packed_backward.backward_rows,
    "backward_columns": packed_backward.backward_columns,
}

INTERPRETED = not isinstance(packed_forward.forward_short, triton.JITFunction)
"""Whether Triton runs its kernels as Python on the host, as TRITON_INTERPRET requests."""


def padded_width(width: int) -> int:
    """The power of two that a head fills in a tile; 16 at least, for the products."""
    return max(16, 1 << (width - 1).bit_length())


@torch.library.custom_op("unmask::packed_attention", mutates_args=())
def packed_attention(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THK: Tensor,
    slopes_H: Tensor | None,
    seed: Tensor | None,
    owner_T: Tensor,
    groups: Tensor,
    tiles: Tensor,
    long_tiles: int,
    size: int,
    span: int,
    dilation: int,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Mixed values (T, H, K) and the log-sum-exp (H, T) in float32.

    Args:
        q_THK, k_THK, v_THK: any strides of tokens and heads.
        slopes_H: ALiBi's, float32.
        seed: of dropout, one int64.
        owner_T: the first token of each token's sequence, int32.
        groups: first token and end of each group of short sequences, int32, (G, 2).
        tiles: of every sequence, the longest first: its first token, its length, a first row; int32, (I, 3).
        long_tiles: the number of tiles of sequences in no group.
        size: maximum tokens of a group.
        span: the radius of the window; -1 for all.
        dilation: the window uses every n-th key.
        causal: a query attends to no key after it; then there is no window.
        dropout: the dropout rate of probabilities.
    """
    o_THK = torch.empty_like(q_THK, memory_format=torch.contiguous_format)
    lse_HT = torch.empty(q_THK.shape[1], q_THK.shape[0], dtype=torch.float32, device=q_THK.device)
    call = _arguments(q_THK, k_THK, v_THK, slopes_H, seed, span, dilation, causal, dropout)
    call |= {"o": o_THK, "lse": lse_HT, "owner": owner_T}
    with torch.cuda.device_of(q_THK):  # type: ignore[no-untyped-call]
        grouped = _launch_short("forward_short", call, groups, size)
        _launch_long("forward_long", call, tiles[:long_tiles] if grouped else tiles)
    return o_THK, lse_HT


@torch.library.custom_op("unmask::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_o_THK: Tensor,
    d_lse_HT: Tensor,
    q_THK: Tensor,
    k_THK: Tensor,
    v_THK: Tensor,
    o_THK: Tensor,
    lse_HT: Tensor,
    slopes_H: Tensor | None,
    seed: Tensor | None,
    owner_T: Tensor,
    groups: Tensor,
    tiles: Tensor,
    long_tiles: int,
    size: int,
    span: int,
    dilation: int,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; arguments as for `packed_attention`."""
    d_q, d_k, d_v = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_THK, k_THK, v_THK)
    )
    call = _arguments(q_THK, k_THK, v_THK, slopes_H, seed, span, dilation, causal, dropout)
    call |= {"o": o_THK, "lse": lse_HT, "owner": owner_T, "delta": torch.empty_like(lse_HT)}
    call |= {"d_o": d_o_THK.contiguous(), "d_lse": d_lse_HT.contiguous(), "d_q": d_q, "d_k": d_k, "d_v": d_v}
    with torch.cuda.device_of(q_THK):  # type: ignore[no-untyped-call]
        grouped = _launch_short("backward_short", call, groups, size)
        rest = tiles[:long_tiles] if grouped else tiles
        _launch_long("backward_rows", call, rest)
        _launch_long("backward_columns", call, rest)
    return d_q, d_k, d_v


def _arguments(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THK: Tensor,
    slopes_H: Tensor | None,
    seed: Tensor | None,
    span: int,
    dilation: int,
    causal: bool,
    dropout: float,
) -> dict[str, Any]:
    """The common arguments of the kernels, by name. A missing one is an arbitrary pointer, never read."""
    tokens, heads, width = q_THK.shape
    arguments: dict[str, Any] = {}
    for name, x_THK in (("q", q_THK), ("k", k_THK), ("v", v_THK)):
        x_THK = x_THK if x_THK.stride(-1) == 1 else x_THK.contiguous()  # noqa: PLW2901
        arguments |= {name: x_THK, f"{name}_token": x_THK.stride(0), f"{name}_head": x_THK.stride(1)}
    return arguments | {
        "slopes": q_THK if slopes_H is None else slopes_H,
        "seed": q_THK if seed is None else seed,
        "heads": heads,
        "tokens": tokens,
        "scale": PER_LN.value / math.sqrt(width),
        "span": span,
        "dilation": dilation,
        "dropout": dropout,
        "WIDTH": width,
        "PADDED": padded_width(width),
        "EXACT": q_THK.dtype == torch.float32,
        "WINDOW": span >= 0 or causal,
        "DILATED": span >= 0 and dilation > 1,
        "CAUSAL": causal,
        "ALIBI": slopes_H is not None,
        "DROPOUT": dropout > 0,
    }


def _burden(call: dict[str, Any]) -> Burden:
    return burden_of(
        window=call["WINDOW"], dilated=call["DILATED"], alibi=call["ALIBI"], dropout=call["DROPOUT"]
    )


def _launch_short(path: Path, call: dict[str, Any], groups: Tensor, size: int) -> bool:
    """Whether groups run in programs of their own; otherwise their sequences are also split into tiles."""
    tiles = short_tiles(size, call["PADDED"], call["EXACT"], _burden(call))
    if tiles is not None and len(groups):
        _launch(path, call | {"items": groups, "SIZE": size}, len(groups), tiles.warps, tiles.stages)
    return tiles is not None


def _launch_long(path: Path, call: dict[str, Any], items: Tensor) -> None:
    tiles = long_tiles(path, call["PADDED"], call["EXACT"], _burden(call))
    split = TILE // (tiles.columns if path == "backward_columns" else tiles.rows)
    sizes = {"ROWS": tiles.rows, "COLUMNS": tiles.columns, "SPLIT": split}
    if len(items):
        _launch(path, call | {"items": items} | sizes, len(items) * split, tiles.warps, tiles.stages)


def _launch(path: Path, call: dict[str, Any], programs: int, warps: int, stages: int) -> None:
    """Run a kernel with those of the arguments that it has, for each head."""
    kernel = KERNELS[path]
    arguments = {name: call[name] for name in kernel.arg_names}
    kernel[(programs * call["heads"],)](**arguments, num_warps=warps, num_stages=stages)


@packed_attention.register_fake
def _shapes(q_THK: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    lse_HT = q_THK.new_empty(q_THK.shape[1], q_THK.shape[0], dtype=torch.float32)
    return torch.empty_like(q_THK, memory_format=torch.contiguous_format), lse_HT


@packed_attention_backward.register_fake
def _shapes_of_gradients(
    d_o_THK: Tensor, d_lse_HT: Tensor, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_THK, k_THK, v_THK))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:8])
    ctx.numbers = inputs[8:]


def _differentiate(ctx: Any, d_o_THK: Tensor, d_lse_HT: Tensor) -> tuple[Tensor | None, ...]:
    gradients = packed_attention_backward(d_o_THK, d_lse_HT, *ctx.saved_tensors, *ctx.numbers)
    return (*gradients, *([None] * 11))


packed_attention.register_autograd(_differentiate, setup_context=_keep)
