"""Rotary positions: queries and keys rotated by angles proportional to their position."""

from typing import NamedTuple

import torch
from torch import Tensor

from unmask.spec import Rotary


class RotaryTable(NamedTuple):
    """The rotation of each token of a batch: cosine and sine of each angle, (T, 1, width / 2)."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def of(cls, positions_T: Tensor, rotary: Rotary, head_width: int, dtype: torch.dtype) -> "RotaryTable":
        """Angles ``position * theta ** (-2 i / width)`` (Su et al. 2021), computed once per batch.

        They are computed in float64 and kept in float32 (float64 for float64 inputs), since at position
        8,000 a bfloat16 angle is wrong by several full turns.
        """
        width = rotary.width or head_width
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=positions_T.device) / width
        angles = (positions_T.double() / rotary.scale)[:, None] * rotary.theta**-exponents
        exact = torch.promote_types(dtype, torch.float32)
        return cls(*(wave.to(exact)[:, None, :] for wave in (angles.cos(), angles.sin())))


def apply_rotary(x_THK: Tensor, rotation: RotaryTable, rotary: Rotary) -> Tensor:
    """Rotate each pair of features; computed in the dtype of ``rotation``, returned in that of ``x_THK``."""
    cosine, sine = rotation
    width = 2 * cosine.shape[-1]
    turned, rest = x_THK[..., :width], x_THK[..., width:]
    if rotary.interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned.chunk(2, dim=-1)
    a, b = a * cosine - b * sine, b * cosine + a * sine
    pairs = torch.stack((a, b), dim=-1).flatten(-2) if rotary.interleaved else torch.cat((a, b), dim=-1)
    pairs = pairs.to(x_THK.dtype)
    return torch.cat((pairs, rest), dim=-1) if rest.shape[-1] else pairs
