"""Gradient checkpointing: recompute layers' activations in the backward pass instead of storing them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.encoder.encoder import Encoder


def recompute_layers(module: nn.Module) -> None:
    """Make the layers of a module's encoders store only their inputs (Chen et al. 2016).

    Activation memory shrinks to one input per layer, at the cost of a second forward pass of each layer.
    Gradients are bitwise the same: the second pass repeats the dropout of the first. A layer with a hook, as
    in distillation, stores everything, because the hook keeps its inner tensors anyway.

    Args:
        module: changed in place; names and weights are unchanged.
    """
    for encoder in module.modules():
        if isinstance(encoder, Encoder):
            for block in encoder.layers:
                # An instance attribute hides the class's method; no module is added, so no name changes.
                block.__dict__["forward"] = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x_TD: Tensor, plan: Any, layer: int, hook: Any = None) -> Tensor:
        if hook is not None or not torch.is_grad_enabled():
            return forward(x_TD, plan, layer, hook)
        found: Tensor = checkpoint(forward, x_TD, plan, layer, None, use_reentrant=False)
        return found

    return run
