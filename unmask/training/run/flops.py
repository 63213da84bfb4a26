"""Floating-point operations of a training step, and the machine's peak rate."""

import time
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unmask.base.system import peak_bytes
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.encoder.layers.parts import ExpertNetwork
from unmask.spec import (
    BlockSparse,
    CausalAttention,
    FullAttention,
    LinearAttention,
    Mixer,
    SlidingWindow,
    SlidingWindowGlobal,
)


class Work:
    """Floating-point operations of a module's encoders for texts of given lengths.

    Two operations per matrix element that a token passes through, and 4 D per query-key pair and layer; three
    times as much for forward and backward together (Kaplan et al. 2020, who leave out attention, which is
    included here). Embedding lookups, norms, softmax and position terms of scores are not counted; the output
    matrix of the vocabulary counts for selected tokens.

    Args:
        module: every `Encoder` in it counts; one without trained parameters only with its forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        encoders = [part for part in module.modules() if isinstance(part, Encoder)]
        self._parts = [
            (_times(encoder), _by_token(encoder), _by_selected(encoder), _mixers(encoder))
            for encoder in encoders
        ]

    def of(self, lengths: NDArray[np.int64], selected: int) -> float:
        """Floating-point operations of a training step on texts of these lengths.

        Args:
            lengths: tokens of each text, special tokens included.
            selected: tokens that are predicted.
        """
        tokens, total = int(lengths.sum()), 0.0
        for times, by_token, by_selected, mixers in self._parts:
            attention = sum(4.0 * width * keys(mixer, lengths) for mixer, width in mixers)
            total += times * (2.0 * by_token * tokens + 2.0 * by_selected * selected + attention)
        return total


def keys(mixer: Mixer, lengths: NDArray[np.int64]) -> float:
    """Number of query-key pairs of these texts; for a linear mixer, the equivalent amount of work."""
    whole = float((lengths**2).sum())
    if isinstance(mixer, LinearAttention):
        return float(lengths.sum()) * (mixer.random_features or mixer.head_width)
    reach = mixer.pattern
    match reach:
        case FullAttention():
            return whole
        case CausalAttention():
            return (whole + float(lengths.sum())) / 2
        case BlockSparse():
            keys_of_random = (5 + reach.random_blocks) * reach.block
            return float(np.where(lengths <= reach.whole_up_to, lengths**2, lengths * keys_of_random).sum())
        case SlidingWindow():
            window = reach
        case SlidingWindowGlobal():
            window = reach.window
        case _:
            assert_never(reach)
    # With dilation d, a text is equivalent to d texts of 1/d of its length.
    radius, short = window.radius, -(-lengths // window.dilation)
    cut = short * (2 * radius + 1) - radius * (radius + 1)
    return float((np.where(short > radius, cut, short**2) * window.dilation).sum())


class Peak:
    """A rate of operations as a fraction of the machine's peak.

    The peak is measured at the start, and a busy machine makes it too small. It is therefore measured again
    whenever a rate exceeds it, and if the rate still exceeds it, that rate becomes the peak: the fraction
    never exceeds 1.

    Args:
        device: device of each process.
        dtype: dtype of the matrix product.
        world: number of processes, each with the same peak.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, world: int = 1) -> None:
        self._device, self._dtype, self._world = device, dtype, world
        self.value = self._measured()

    def share(self, rate: float) -> float:
        """``rate``, in operations per second of all processes, divided by the peak."""
        if rate > self.value:
            self.value = max(rate, self.value, self._measured())
        return rate / self.value

    def _measured(self) -> float:
        return peak_flops(self._device, self._dtype) * self._world


def peak_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """Operations per second of a large matrix product in ``dtype``, measured with this process's threads."""
    size = 1024 if device.type == "cpu" else 8192
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=draw).to(dtype) for _ in range(2))
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        _wait(device)
        began = time.perf_counter()
        torch.mm(a, b)
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best


def peak_memory(device: torch.device) -> int | None:
    """Peak memory in bytes so far: of torch on a GPU, of this process otherwise; None where unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_bytes()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _times(encoder: Encoder) -> float:
    return 3.0 if any(parameter.requires_grad for parameter in encoder.parameters()) else 1.0


def _by_token(encoder: Encoder) -> int:
    """Elements of the matrices that every token passes through; a shared layer counts each time it runs."""
    parts: list[nn.Module] = [encoder.block(layer) for layer in range(len(encoder.spec.layers))]
    if encoder.embedding.projection is not None:
        parts.append(encoder.embedding.projection)
    parts += [encoder.final_map, *([] if encoder.layer_inputs is None else [encoder.layer_inputs])]
    matrices = sum(
        parameter.numel() for part in parts for parameter in part.parameters() if parameter.dim() > 1
    )
    networks = [network for part in parts for network in part.modules() if isinstance(network, ExpertNetwork)]
    # Of the matrices of experts, a token passes through those of the chosen ones.
    unused = (
        (network.experts.inner.numel() + network.experts.outer.numel())
        * (network.spec.experts - network.spec.chosen)
        // network.spec.experts
        for network in networks
    )
    return matrices - sum(unused)


def _by_selected(encoder: Encoder) -> int:
    """Elements of the matrices that only selected tokens pass through: the MLM head's transform and output
    matrix."""
    total = 0
    for head in encoder.heads.values():
        if isinstance(head, MaskedLMHead):
            width = encoder.spec.state_width if head.spec.transform is None else head.spec.transform.width
            total += encoder.spec.embedding.vocabulary * width
            if head.transform is not None:
                total += sum(weight.numel() for weight in head.transform.parameters() if weight.dim() == 2)
    return total


def _mixers(encoder: Encoder) -> list[tuple[Mixer, int]]:
    mixers = [layer.mixer for layer in encoder.spec.layers]
    return [(mixer, mixer.heads * mixer.head_width) for mixer in mixers]
