"""Each attention kernel compared with the definition: error, time, memory, and share of peak throughput.

Also the roofline of a model's attention (Williams, Waterman & Patterson 2009): its operations for each byte
that it moves, beside what the machine can do.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask.bench.machine import (
    LeftOut,
    Machine,
    bandwidth_gbytes,
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
    choose,
    probabilities,
)
from unmask.models.load import Model
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
    SoftmaxAttention,
)
from unmask.spec.attention import AttentionPosition
from unmask.tasks.progress import Progress
from unmask.text import SequenceLayout
from unmask.training.run.flops import keys
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
ROOFLINE_TOKENS = (64, 256, 1024, 4096)
ROOFLINE_ROUNDS = 3
ROOFLINE_SECONDS = 6.0
"""A length whose calls would take longer, by those of the length before, is counted and not measured."""


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
        batches = _batches(
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


def _batches(
    tokens: int, dtype: str, heads: int, width: int, *, device: torch.device, seed: int, marks: bool
) -> list[_Batch]:
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
            run = _attend(kernel, batch, request.pattern, bias)
            try:
                errors[name] = _largest_error(run(), *expected)
                peaks[name] = peak_extra_bytes(run, device)
                works[name] = _waited(run, device)
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


def _attend(
    kernel: Kernel, batch: _Batch, pattern: AttentionPattern, bias: AttentionBias
) -> Callable[[], Tensor]:
    q_THK, k_THK, v_THK = batch.qkv
    plan = kernel.plan(batch.layout, pattern, q_THK.device)

    def run() -> Tensor:
        with torch.inference_mode():
            return kernel.attend(q_THK, k_THK, v_THK, plan, pattern=pattern, bias=bias).o_THK

    return run


def _waited(run: Callable[[], Tensor], device: torch.device) -> Callable[[], None]:
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

    return _waited(run, q_HTK.device)


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


@dataclass(frozen=True)
class AttentionCost:
    """The attention of one text in all layers: from queries, keys and values to what the heads return.

    Bytes count every array as often as a step reads or writes it, as if no cache held it between two steps.
    """

    tokens: int
    operations: float
    """A multiplication and an addition for each of K columns, of every query with every key that it attends
    to, in the product of the scores and in that with the values."""
    tiled_bytes: float
    """Queries, keys and values are read once, and the result is written: scores are never stored."""
    stored_bytes: float
    """The same, and every score is written, read by the softmax, written, and read by the second product."""
    seconds: float | None = None
    """The fastest of up to `ROOFLINE_ROUNDS` calls of the kernel that is chosen, with random inputs and
    without the position terms of scores; None where it was not measured."""


@dataclass(frozen=True)
class Roofline:
    """What the machine can do, and what attention asks of it."""

    processor: str
    threads: int
    dtype: str
    gflop_per_second: float
    """The highest rate of a product of matrices (`peak_gflops`) or of the attention itself."""
    gbytes_per_second: float
    """The bandwidth of the memory, see `bandwidth_gbytes`."""
    costs: tuple[AttentionCost, ...]


def attention_cost(mixers: Sequence[SoftmaxAttention], tokens: int, bytes_of_number: int) -> AttentionCost:
    """Operations and bytes of these attention layers for one text, counted and not measured."""
    operations = tiled = scores = 0.0
    for mixer in mixers:
        pairs = mixer.heads * keys(mixer, np.array([tokens]))
        operations += 4 * mixer.head_width * pairs
        arrays = 2 * mixer.heads + 2 * (mixer.key_value_heads or mixer.heads)
        tiled += arrays * tokens * mixer.head_width * bytes_of_number
        scores += 4 * pairs * bytes_of_number
    return AttentionCost(tokens, operations, tiled, tiled + scores)


def roofline(model: Model, lengths: Sequence[int] = ROOFLINE_TOKENS) -> Roofline:
    """Measure the peak, the bandwidth and the attention of a model at several lengths, some seconds in all.

    Raises:
        InvalidRequest: no layer of the model has softmax attention.
    """
    mixers = [layer.mixer for layer in model.spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    if not mixers:
        raise InvalidRequest(f"no layer of {model.name} has softmax attention, which a roofline is drawn of")
    dtype, device = model.dtype if model.dtype != "int8" else "float32", device_named(model.device)
    size, left = torch.finfo(getattr(torch, dtype)).bits // 8, ROOFLINE_SECONDS
    costs: list[AttentionCost] = []
    for tokens in sorted(lengths):
        cost = attention_cost(mixers, tokens, size)
        last = costs[-1] if costs else replace(cost, seconds=0.0)
        if last.seconds is not None and last.seconds * cost.operations / last.operations <= left:
            started = time.perf_counter()
            cost = replace(cost, seconds=_attention_seconds(mixers, tokens, dtype, device, left))
            left -= time.perf_counter() - started
        costs.append(cost)
    rates = [cost.operations / cost.seconds / 1e9 for cost in costs if cost.seconds]
    machine = this_machine(device)
    return Roofline(
        processor=machine.accelerator or machine.processor,
        threads=machine.threads,
        dtype=dtype,
        gflop_per_second=max(peak_gflops(dtype, device) or 0.0, *rates),
        gbytes_per_second=bandwidth_gbytes(device),
        costs=tuple(costs),
    )


def _attention_seconds(
    mixers: Sequence[SoftmaxAttention], tokens: int, dtype: str, device: torch.device, budget_seconds: float
) -> float:
    """The best time of all layers; those alike are measured once."""
    plain = [replace(mixer, position=NoPosition(), key_value_heads=None) for mixer in mixers]
    seconds = 0.0
    for mixer in dict.fromkeys(plain):
        width, pattern = mixer.head_width, mixer.pattern
        request = AttentionRequest(str(device.type), dtype, pattern, NoPosition(), width, tokens)
        marks = isinstance(pattern, SlidingWindowGlobal)
        batch = _batches(tokens, dtype, mixer.heads, width, device=device, seed=0, marks=marks)[0]
        run = _attend(choose(request), batch, pattern, AttentionBias.of(NoPosition(), mixer.heads))
        times = interleaved({"": _waited(run, device)}, ROOFLINE_ROUNDS, budget_seconds=budget_seconds / 4)
        seconds += plain.count(mixer) * min(times[""])
    return seconds
