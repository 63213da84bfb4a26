"""Rotary positions: queries and keys turned by angles that grow with their position."""

import torch
from torch import Tensor

from unmask.model.spec import Rotary


def turn(x_THK: Tensor, positions_T: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair of features by ``position * theta ** (-2 i / width)`` (Su et al. 2021).

    Angles are computed in float64 and the rotation in float32 (float64 for float64 inputs), since
    at position 8,000 a bfloat16 angle is off by whole turns; the result has the dtype of ``x_THK``.
    """
    width = rotary.width or x_THK.shape[-1]
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=x_THK.device) / width
    angles = (positions_T.double() / rotary.scale)[:, None] * rotary.theta**-exponents
    exact = torch.promote_types(x_THK.dtype, torch.float32)
    cosine, sine = (wave.to(exact)[:, None, :] for wave in (angles.cos(), angles.sin()))
    turned, rest = x_THK[..., :width].to(exact), x_THK[..., width:]
    if rotary.interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        pairs = torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)
    return torch.cat((pairs.to(x_THK.dtype), rest), dim=-1)
