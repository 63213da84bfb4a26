"""Weight initialization, including the projections that write to the residual stream."""

import math
from collections.abc import Iterator
from typing import get_args

from torch import nn

from unmask.encoder.layers.block import Block
from unmask.errors import InvalidRequest
from unmask.spec.initialization import Initialization

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
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            if how == "megatron":
                module_std = std / math.sqrt(2 * layers) if id(module) in outputs else std
                nn.init.trunc_normal_(module.weight, std=module_std, a=-CUT * module_std, b=CUT * module_std)
            elif how == "zero_out" and id(module) in outputs:
                nn.init.zeros_(module.weight)
            else:
                nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
            nn.init.zeros_(module.bias)


def output_projections(encoder: nn.Module) -> Iterator[nn.Linear]:
    """The matrices whose products are added to the residual stream: two for each set of layer weights."""
    for module in encoder.modules():
        if isinstance(module, Block):
            for matrix in (module.attention.out, module.feedforward.outer):
                assert isinstance(matrix, nn.Linear)
                yield matrix
