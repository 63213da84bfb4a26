"""How much arithmetic a training step is, and how much this machine could do."""

import resource
import sys
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unmask.model.encoder import Encoder
from unmask.model.heads import MaskedLMHead
from unmask.model.spec import BlockSparse, FullAttention, LinearAttention, Mixer, SlidingWindow


class Work:
    """The arithmetic that the encoders of a module need for texts of given lengths.

    Two operations for each number of a matrix that a token passes through, and 4 D for each key that a query
    of a layer sees; three times as much where gradients are wanted, forward and backward (Kaplan et al. 2020,
    who leave attention's part out as we do not). Tables that are looked up, norms and softmax are not
    counted, nor are position terms of scores; the vocabulary's matrix counts for selected tokens.

    Args:
        module: every `Encoder` in it counts, one without a trained parameter for its forward pass alone.
    """

    def __init__(self, module: nn.Module) -> None:
        encoders = [part for part in module.modules() if isinstance(part, Encoder)]
        self._parts = [(_times(one), _by_token(one), _by_selected(one), _mixers(one)) for one in encoders]

    def of(self, lengths: NDArray[np.int64], selected: int) -> float:
        """Floating-point operations of a training step on texts of these lengths.

        Args:
            lengths: tokens of each text, special ones included.
            selected: tokens whose word is predicted.
        """
        tokens, total = int(lengths.sum()), 0.0
        for times, by_token, by_selected, mixers in self._parts:
            attention = sum(4.0 * width * keys(mixer, lengths) for mixer, width in mixers)
            total += times * (2.0 * by_token * tokens + 2.0 * by_selected * selected + attention)
        return total


def keys(mixer: Mixer, lengths: NDArray[np.int64]) -> float:
    """How many keys all queries of these texts see together; for a linear mixer, what is as much work."""
    whole = float((lengths**2).sum())
    if isinstance(mixer, LinearAttention):
        return float(lengths.sum()) * (mixer.random_features or mixer.head_width)
    reach = mixer.pattern
    if isinstance(reach, FullAttention):
        return whole
    if isinstance(reach, BlockSparse):
        seen = (5 + reach.random_blocks) * reach.block
        return float(np.where(lengths <= reach.whole_up_to, lengths**2, lengths * seen).sum())
    window = reach if isinstance(reach, SlidingWindow) else reach.window
    # With gaps of d, a text is d texts of a d-th of its length.
    radius, short = window.radius, -(-lengths // window.dilation)
    cut = short * (2 * radius + 1) - radius * (radius + 1)
    return float((np.where(short > radius, cut, short**2) * window.dilation).sum())


class Peak:
    """How near a rate of arithmetic comes to what the machine can do.

    The peak is measured at the start, which a busy machine makes too small. So it is measured again whenever
    a rate is above it, and where the rate is still above, that rate is the peak from then on: a share is
    never above 1.

    Args:
        device: of each process.
        dtype: of the matrix product.
        world: processes, each of which can do as much.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, world: int = 1) -> None:
        self._device, self._dtype, self._world = device, dtype, world
        self.value = self._measured()

    def share(self, rate: float) -> float:
        """``rate``, in operations a second of all processes, by the peak."""
        if rate > self.value:
            self.value = max(rate, self.value, self._measured())
        return rate / self.value

    def _measured(self) -> float:
        return peak_flops(self._device, self._dtype) * self._world


def peak_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """Operations a second of a large matrix product in ``dtype``, measured now on this process's threads."""
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


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by torch on a GPU, by this process otherwise."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _times(encoder: Encoder) -> float:
    return 3.0 if any(one.requires_grad for one in encoder.parameters()) else 1.0


def _by_token(encoder: Encoder) -> int:
    """Numbers of the matrices that every token passes through; a shared layer counts as often as it runs."""
    parts: list[nn.Module] = [encoder.block(layer) for layer in range(len(encoder.spec.layers))]
    if encoder.embedding.projection is not None:
        parts.append(encoder.embedding.projection)
    return sum(one.numel() for part in parts for one in part.parameters() if one.dim() == 2)


def _by_selected(encoder: Encoder) -> int:
    """Those that selected tokens alone pass through: the predictor's transform and one vector a word."""
    total = 0
    for head in encoder.heads.values():
        if isinstance(head, MaskedLMHead):
            dense = head.transform.dense if head.transform is not None else None
            width = encoder.spec.width if dense is None else dense.out_features
            total += encoder.spec.embedding.vocabulary * width + (
                0 if dense is None else dense.weight.numel()
            )
    return total


def _mixers(encoder: Encoder) -> list[tuple[Mixer, int]]:
    mixers = [layer.mixer for layer in encoder.spec.layers]
    return [(mixer, mixer.heads * mixer.head_width) for mixer in mixers]
