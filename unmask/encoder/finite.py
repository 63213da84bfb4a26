"""Whether a tensor is finite: the check of all weights that are read or written."""

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite.

    Two extremes, found in one pass, need no mask of the tensor's size; NaN is both.
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return bool(torch.isfinite(tensor).all())
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))
