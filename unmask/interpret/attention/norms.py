"""Norms of the vectors that a token contributes through a head (Kobayashi et al. 2020).

Axes: I heads times the width of one.
"""

import torch
from torch import Tensor, nn

from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.linear_attention import LinearMixer

LARGE = 1024.0
"""Beside products with it, a bias rounds away; a power of two, so that it is taken out again exactly."""


def out_matrix(mixer: SoftmaxMixer | LinearMixer) -> Tensor:
    """What the output projection makes of each head's features, without its bias: (H, K, D), float64.

    Layers optimized for inference store their weights in a different order; these are evaluated feature by
    feature.
    """
    spec, out = mixer.spec, mixer.out
    inner = spec.heads * spec.head_width
    with torch.no_grad():
        if type(out) is nn.Linear:
            weight_ID = out.weight.detach().T.double()
        else:
            reference = next(mixer.buffers())
            dtype = reference.dtype if reference.is_floating_point() else torch.float32
            bias = getattr(out, "bias", None)
            dtype = dtype if bias is None else bias.dtype
            probe = torch.eye(inner, dtype=dtype, device=reference.device) * LARGE
            zero_1D = out(torch.zeros_like(probe[:1]))
            weight_ID = (out(probe).double() - zero_1D.double()) / LARGE
    return weight_ID.view(spec.heads, spec.head_width, -1)


def out_factors(mixer: SoftmaxMixer | LinearMixer) -> Tensor:
    """A small factor of each head's output matrix that keeps lengths: ``||v W|| = ||v F||``, (H, K, E).

    It is the transposed triangular factor of ``W^T``, so lengths are as exact as by W itself; E is at most K.
    """
    weight_HKD = out_matrix(mixer)
    factors_HKE: Tensor = torch.linalg.qr(weight_HKD.mT).R.mT.contiguous()
    return factors_HKE


def value_norms(v_RHK: Tensor, factors_HKE: Tensor) -> Tensor:
    """``||f(x)||`` of every token in every head, (H, R), with ``f(x) = (x W_V + b_V) W_O`` of the head.

    The bias of the output projection belongs to no head and is left out.
    """
    lengths_HR: Tensor = torch.linalg.vector_norm(v_RHK.transpose(0, 1) @ factors_HKE.to(v_RHK), dim=-1)
    return lengths_HR
