"""Initialization of weights, of which those that write to the residual stream are apart."""

import math
from collections.abc import Iterator
from typing import get_args

from torch import Tensor, nn

from unmask.encoder.layers.block import Block
from unmask.encoder.layers.parts import Experts, GroupedLinear, StackedNetwork
from unmask.errors import InvalidRequest
from unmask.spec.encoder import Initialization

CUT = 2.0
"""Number of standard deviations at which ``megatron`` truncates."""


def initialize(encoder: nn.Module, std: float, layers: int, how: Initialization = "normal") -> None:
    """Initialize every weight of an encoder in place, from torch's global generator.

    Args:
        encoder: the module that contains the layers, embedding and heads.
        std: the standard deviation of weights.
        layers: the number of layers that run, counting each layer that shares weights.
        how: see `Initialization`.

    Raises:
        InvalidRequest: there is no such initialization.
    """
    if how not in get_args(Initialization):
        raise InvalidRequest(f"initialization is {how!r}; it can be {', '.join(get_args(Initialization))}")
    outputs = {id(linear) for linear in output_projections(encoder)}
    for module in encoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | GroupedLinear):
            _initialize(module.weight, std, layers, how, id(module) in outputs)
        if isinstance(module, Experts):
            for matrix, out in ((module.inner, False), (module.outer, True)):
                _initialize(matrix, std, layers, how, out)
            for bias in (module.inner_bias, module.outer_bias):
                if bias is not None:
                    nn.init.zeros_(bias)
        if isinstance(module, nn.Linear | nn.Conv1d | Experts | GroupedLinear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _initialize(weight: Tensor, std: float, layers: int, how: Initialization, is_output: bool) -> None:
    if how == "megatron":
        own_std = std / math.sqrt(2 * layers) if is_output else std
        nn.init.trunc_normal_(weight, std=own_std, a=-CUT * own_std, b=CUT * own_std)
    elif how == "zero_out" and is_output:
        nn.init.zeros_(weight)
    else:
        nn.init.normal_(weight, std=std)


def output_projections(encoder: nn.Module) -> Iterator[nn.Linear | GroupedLinear]:
    """The linear layers whose products are added to the residual stream or to narrow states; matrices of
    experts are not among them."""
    for module in encoder.modules():
        if isinstance(module, Block):
            network = module.feedforward
            added = [module.attention.out, getattr(network, "outer", None)]
            if isinstance(network, StackedNetwork):
                added += [earlier.outer for earlier in network.earlier]
            if module.bottleneck is not None:
                added.append(module.bottleneck.outer)
            if module.gate is not None:
                added.append(module.gate.outer)
            for matrix in added:
                if isinstance(matrix, nn.Linear | GroupedLinear):
                    yield matrix
