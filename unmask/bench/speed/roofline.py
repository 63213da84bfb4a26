"""The roofline of a model's attention (Williams, Waterman & Patterson 2009).

It shows the operations for each byte that attention moves, beside what the machine can do.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from unmask.bench.machine import bandwidth_gbytes, peak_gflops, this_machine
from unmask.bench.speed.kernels import batches_of, kernel_call, waited
from unmask.bench.timing import interleaved
from unmask.errors import InvalidRequest
from unmask.kernels import AttentionBias, AttentionRequest, choose
from unmask.models.load import Model
from unmask.spec import NoPosition, SlidingWindowGlobal, SoftmaxAttention
from unmask.training.run.flops import keys
from unmask.weights.build import device_named

ROOFLINE_TOKENS = (64, 256, 1024, 4096)
ROOFLINE_ROUNDS = 3
ROOFLINE_SECONDS = 6.0
"""A length whose calls would take longer, by those of the length before, is counted and not measured."""


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
        batch = batches_of(tokens, dtype, mixer.heads, width, device=device, seed=0, marks=marks)[0]
        run = kernel_call(choose(request), batch, pattern, AttentionBias.of(NoPosition(), mixer.heads))
        times = interleaved({"": waited(run, device)}, ROOFLINE_ROUNDS, budget_seconds=budget_seconds / 4)
        seconds += plain.count(mixer) * min(times[""])
    return seconds
