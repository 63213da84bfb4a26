"""Each attention kernel compared with the definition: error, time, memory, and share of peak throughput."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask.base.progress import Progress
from unmask.bench.machine import (
    LeftOut,
    Machine,
    peak_gflops,
    sentence_of,
    this_machine,
)
from unmask.bench.memory import MIB, peak_extra_bytes
from unmask.bench.timing import Seconds, Spread, interleaved, ratio
from unmask.errors import InvalidRequest
from unmask.kernels import (
    KERNELS,
    AttentionBias,
    AttentionRequest,
    DistanceBias,
    Kernel,
    MaskContext,
    Tile,
    allowed,
    probabilities,
)
from unmask.spec import (
    Alibi,
    AttentionPattern,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    NoPosition,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.spec.attention import AttentionPosition
from unmask.text import SequenceLayout
from unmask.weights.build import device_named

PatternName = Literal["full", "causal", "sliding-window", "sliding-window-global", "block-sparse"]
PositionName = Literal["none", "alibi", "disentangled"]

CHECKED_ROWS, ROWS_AT_ONCE = 512, 64
"""Number of evenly spaced rows of a batch that are compared with the definition, which is evaluated on all of
them at once in float64."""
GLOBAL_TOKENS = 4
MASKED = "torch SDPA with a mask"
"""The baseline for windows: full attention with every key outside the window masked."""
REFERENCE_TOKENS = 1024
"""The longest sequence on which the reference kernel is timed; it holds all scores of a sequence in
float64."""
RAGGED_SEQUENCES = 8


@dataclass(frozen=True)
class KernelRow:
    """One kernel on one batch."""

    kernel: str
    dtype: str
    batch: str
    """``one`` is one sequence of ``tokens``; ``rectangular`` is `RAGGED_SEQUENCES` sequences of equal length
    with the same total; ``ragged`` is as many sequences of unequal length."""
    tokens: int
    rounds: int
    seconds: Spread
    gflop_per_second: float
    """Counts the two products of each query with each key that it attends to; other work is not counted."""
    share_of_peak: float | None
    largest_error: float
    """Compared with the definition in float64 on the same inputs, over `CHECKED_ROWS` rows."""
    peak_extra_mib: float | None
    """Above its inputs; includes its output."""
    times_as_fast_as_masked: Spread | None
    """For windows: speed relative to torch's SDPA with a mask, compared within each round."""
    time_per_token_to_rectangular: Spread | None
    """For the ragged batch: time relative to the rectangular one, compared within each round."""


@dataclass(frozen=True)
class Peak:
    """The highest rate of a matrix product measured in this run."""

    dtype: str
    gflop_per_second: float | None


@dataclass(frozen=True)
class KernelsReport:
    """The result of `measure_kernels`."""

    protocol: str = field(default="kernels", init=False)
    machine: Machine
    pattern: str
    position: str
    heads: int
    head_width: int
    peaks: tuple[Peak, ...]
    rows: tuple[KernelRow, ...]
    left_out: tuple[LeftOut, ...]
    seed: int


@dataclass(frozen=True)
class _Batch:
    """Inputs of attention, and their name in the report."""

    name: str
    layout: SequenceLayout
    qkv: tuple[Tensor, Tensor, Tensor]


def pattern_of(name: PatternName, radius: int) -> AttentionPattern:
    """The attention pattern with a name; ``radius`` is the radius of a window or the width of a block."""
    window = SlidingWindow(radius)
    patterns: dict[str, Callable[[], AttentionPattern]] = {
        "full": FullAttention,
        "causal": CausalAttention,
        "sliding-window": lambda: window,
        "sliding-window-global": lambda: SlidingWindowGlobal(window, own_projections=False),
        "block-sparse": lambda: BlockSparse(radius),
    }
    return patterns[name]()


def bias_of(
    name: PositionName, heads: int, width: int, device: torch.device
) -> tuple[AttentionPosition, AttentionBias]:
    """The position with a name, and its bias; a table of distances is drawn at random."""
    if name != "disentangled":
        position = Alibi() if name == "alibi" else NoPosition()
        return position, AttentionBias.of(position, heads)
    distances = Disentangled(512, buckets=256)
    tables = (torch.randn(2 * distances.span, heads, width, device=device) for _ in range(2))
    return distances, AttentionBias(distances=DistanceBias(distances, *tables))


def measure_kernels(
    *,
    pattern: PatternName = "full",
    position: PositionName = "none",
    lengths: Sequence[int] = (512, 2048),
    dtypes: Sequence[str] = ("float32",),
    radius: int = 64,
    heads: int = 12,
    head_width: int = 64,
    rounds: int = 3,
    device: str = "cpu",
    seed: int = 0,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> KernelsReport:
    """Measure every capable kernel on one sequence of each length and on a rectangular and a ragged batch.

    Args:
        pattern: which keys a query attends to.
        position: what is added to the scores.
        lengths: total tokens of each batch.
        dtypes: number formats of the inputs.
        radius: radius of windows, or width of blocks.
        heads: number of heads, H.
        head_width: width of a head, K.
        rounds: how often each kernel is timed.
        device: a torch device name.
        seed: seed of the inputs.
        budget_seconds: time budget per length and number format; no new round starts after it.
        progress: called with (combinations of length and number format done, in total).

    Raises:
        InvalidRequest: a number is below 1.
    """
    if min(*lengths, radius, heads, head_width, len(dtypes)) < 1:
        raise InvalidRequest("lengths, radius, heads and head width must be at least 1")
    torch.manual_seed(seed)
    where = device_named(device)
    spec, (place, bias) = pattern_of(pattern, radius), bias_of(position, heads, head_width, where)
    peaks = {dtype: peak_gflops(dtype, where) for dtype in dtypes}
    rows: list[KernelRow] = []
    left_out: list[LeftOut] = []
    cases = [(dtype, length) for dtype in dtypes for length in lengths]
    for done, (dtype, length) in enumerate(cases, start=1):
        batches = batches_of(
            length,
            dtype,
            heads,
            head_width,
            device=where,
            seed=seed,
            marks=pattern == "sliding-window-global",
        )
        request = AttentionRequest(str(where.type), dtype, spec, place, head_width, length)
        rows += _case(
            batches,
            request,
            bias,
            peak=peaks[dtype],
            rounds=rounds,
            budget_seconds=budget_seconds,
            left_out=left_out,
        )
        if progress is not None:
            progress(done, len(cases))
    listed = tuple(Peak(dtype, peak) for dtype, peak in peaks.items())
    return KernelsReport(
        this_machine(where), pattern, position, heads, head_width, listed, tuple(rows), tuple(left_out), seed
    )


def batches_of(
    tokens: int, dtype: str, heads: int, width: int, *, device: torch.device, seed: int, marks: bool
) -> list[_Batch]:
    """Random batches: one sequence; then, of tokens enough, eight of equal and eight of different length."""
    qkv = torch.randn(3, tokens, heads, width, device=device).to(getattr(torch, dtype)).unbind(0)
    globals_T = np.arange(tokens) < GLOBAL_TOKENS if marks else None
    layouts = {"one": [tokens]}
    if tokens >= 4 * RAGGED_SEQUENCES:
        mean = tokens // RAGGED_SEQUENCES
        layouts["rectangular"] = [mean] * RAGGED_SEQUENCES
        step = mean // RAGGED_SEQUENCES
        # Lengths from about half to one and a half times the mean, in random order, with the same sum.
        ramp = [mean + step * (2 * i + 1 - RAGGED_SEQUENCES) // 2 for i in range(RAGGED_SEQUENCES)]
        ramp[-1] += mean * RAGGED_SEQUENCES - sum(ramp)
        layouts["ragged"] = np.random.default_rng(seed).permutation(ramp).tolist()
    batches = []
    for name, lengths in layouts.items():
        total = sum(lengths)
        marked = None if globals_T is None else globals_T[:total]
        q, k, v = (x[:total] for x in qkv)
        batches.append(_Batch(name, SequenceLayout.of_lengths(lengths, marked), (q, k, v)))
    return batches


def _case(
    batches: list[_Batch],
    request: AttentionRequest,
    bias: AttentionBias,
    *,
    peak: float | None,
    rounds: int,
    budget_seconds: float | None,
    left_out: list[LeftOut],
) -> list[KernelRow]:
    work = f"{request.dtype}, {request.longest} tokens"
    chosen = []
    for kernel in KERNELS:
        record = kernel.capability
        reason = record.refusal(request)
        if record.name == "reference" and request.longest > REFERENCE_TOKENS:
            reason = f"holds all scores in float64; not timed above {REFERENCE_TOKENS} tokens"
        if reason is None:
            chosen.append(kernel)
        else:
            left_out.append(LeftOut(record.name, work, reason))
    device = batches[0].qkv[0].device
    errors, peaks, works = {}, {}, {}
    for batch in batches:
        expected = _definition(batch, request.pattern, bias)
        if isinstance(request.pattern, SlidingWindow) and batch.name == "one":
            works[f"{MASKED} one"] = _masked(batch, request.pattern)
        for kernel in chosen:
            name = f"{kernel.capability.name} {batch.name}"
            run = kernel_call(kernel, batch, request.pattern, bias)
            try:
                errors[name] = _largest_error(run(), *expected)
                peaks[name] = peak_extra_bytes(run, device)
                works[name] = waited(run, device)
            except Exception as error:  # one kernel that fails must not hide the others
                left_out.append(LeftOut(kernel.capability.name, f"{work}, {batch.name}", sentence_of(error)))
    with torch.inference_mode():
        times = interleaved(works, rounds, warm_up=0, budget_seconds=budget_seconds)
    return [
        _row(name, batch, times, error=errors[name], peak_bytes=peaks[name], request=request, peak=peak)
        for batch in batches
        for name in errors
        if name.endswith(f" {batch.name}")
    ]


def kernel_call(
    kernel: Kernel, batch: _Batch, pattern: AttentionPattern, bias: AttentionBias
) -> Callable[[], Tensor]:
    """A call of a kernel on a batch that it has planned."""
    q_THK, k_THK, v_THK = batch.qkv
    plan = kernel.plan(batch.layout, pattern, q_THK.device)

    def run() -> Tensor:
        with torch.inference_mode():
            return kernel.attend(q_THK, k_THK, v_THK, plan, pattern=pattern, bias=bias).o_THK

    return run


def waited(run: Callable[[], Tensor], device: torch.device) -> Callable[[], None]:
    """The work, and waiting until the device has done it."""

    def work() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return work


def _masked(batch: _Batch, pattern: SlidingWindow) -> Callable[[], None]:
    q_HTK, k_HTK, v_HTK = (x_THK.transpose(0, 1)[None] for x_THK in batch.qkv)
    allowed_NN = allowed(Tile.whole(batch.layout.token_count), pattern, q_HTK.device)

    def run() -> Tensor:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(q_HTK, k_HTK, v_HTK, attn_mask=allowed_NN)

    return waited(run, q_HTK.device)


def _definition(batch: _Batch, pattern: AttentionPattern, bias: AttentionBias) -> tuple[Tensor, Tensor]:
    """Indices of rows (R,) in the whole batch, and their expected values (R, H, K) in float64."""
    layout, heads = batch.layout, batch.qkv[0].shape[1]
    blocks = max(1, CHECKED_ROWS // ROWS_AT_ONCE // layout.sequence_count)
    places, mixed = [], []
    for sequence in range(layout.sequence_count):
        rows = layout.rows(sequence)
        q_NHK, k_NHK, v_NHK = (x_THK[rows].double() for x_THK in batch.qkv)
        length = len(q_NHK)
        context = MaskContext.of(layout, sequence, heads)
        for first in np.unique(np.linspace(0, max(0, length - ROWS_AT_ONCE), blocks).astype(int)).tolist():
            end = min(first + ROWS_AT_ONCE, length)
            tile = Tile(first, end, 0, length)
            p_HRN, _ = probabilities(tile, q_NHK[first:end], k_NHK, pattern, bias, context=context)
            mixed.append(torch.einsum("hrn,nhk->rhk", p_HRN, v_NHK))
            places.append(torch.arange(rows.start + first, rows.start + end, device=q_NHK.device))
    return torch.cat(places), torch.cat(mixed)


def _largest_error(found_THK: Tensor, places_R: Tensor, expected_RHK: Tensor) -> float:
    return float((found_THK[places_R].double() - expected_RHK).abs().max())


def _row(
    name: str,
    batch: _Batch,
    times: Seconds,
    *,
    error: float,
    peak_bytes: int | None,
    request: AttentionRequest,
    peak: float | None,
) -> KernelRow:
    kernel, seconds = name.removesuffix(f" {batch.name}"), Spread.of(times[name])
    width = batch.qkv[0].shape[2]
    rate = 4 * width * _pairs(batch, request.pattern) / seconds.median / 1e9
    masked, even = f"{MASKED} one", f"{kernel} rectangular"
    return KernelRow(
        kernel=kernel,
        dtype=request.dtype,
        batch=batch.name,
        tokens=batch.layout.token_count,
        rounds=len(times[name]),
        seconds=seconds,
        gflop_per_second=rate,
        share_of_peak=None if peak is None else rate / peak,
        largest_error=error,
        peak_extra_mib=None if peak_bytes is None else peak_bytes / MIB,
        times_as_fast_as_masked=ratio(times, masked, name)
        if masked in times and batch.name == "one"
        else None,
        time_per_token_to_rectangular=(
            ratio(times, name, even) if batch.name == "ragged" and even in times else None
        ),
    )


def _pairs(batch: _Batch, pattern: AttentionPattern) -> int:
    """Pairs of a query and a key it attends to, over all heads; duplicate keys count once."""
    heads, total, device = batch.qkv[0].shape[1], 0, batch.qkv[0].device
    for sequence in range(batch.layout.sequence_count):
        rows = batch.layout.rows(sequence)
        length, context = rows.stop - rows.start, MaskContext.of(batch.layout, sequence, heads)
        for first in range(0, length, CHECKED_ROWS):
            tile = Tile(first, min(first + CHECKED_ROWS, length), 0, length)
            allowed_pairs = allowed(tile, pattern, device, context)
            if allowed_pairs is None:
                total += heads * (tile.end_row - first) * length
            else:
                total += int(allowed_pairs.sum()) * (
                    heads if allowed_pairs.ndim == 2 or len(allowed_pairs) == 1 else 1
                )
    return total
