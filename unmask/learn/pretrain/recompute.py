"""Layers whose inner activations are computed again in the backward pass instead of being kept."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.model.encoder import Encoder


def recompute_layers(module: nn.Module) -> None:
    """From now on, layers of encoders in a module keep what they read and nothing else (Chen et al. 2016).

    Memory for activations falls from all that a layer computes to its input, for a second forward pass of
    each layer. Gradients are bitwise the same: the second pass has the first one's dropout. A layer that is
    tapped, as in distillation, keeps everything, since whoever taps it keeps its inner tensors too.

    Args:
        module: changed in place; names and weights stay as they are.
    """
    for encoder in module.modules():
        if isinstance(encoder, Encoder):
            for block in encoder.layers:
                # An instance hides the method of its class; nothing becomes a module, so no name changes.
                block.__dict__["forward"] = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x_TD: Tensor, plan: Any, layer: int, hook: Any = None) -> Tensor:
        if hook is not None or not torch.is_grad_enabled():
            return forward(x_TD, plan, layer, hook)
        found: Tensor = checkpoint(forward, x_TD, plan, layer, None, use_reentrant=False)
        return found

    return run
