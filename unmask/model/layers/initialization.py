"""Fresh weights: how they are drawn, and how the parts that write to the residual stream begin."""

import math
from collections.abc import Iterator
from typing import Literal, get_args

from torch import nn

from unmask.errors import InvalidRequest
from unmask.model.layers.block import Block

Initialization = Literal["normal", "megatron", "zero_out"]
"""``normal``: every matrix normal with the spec's deviation, biases 0, norms 1 (Devlin et al. 2019).

``megatron``: the same drawn within two deviations, and output projections, those of attention and of the
feed-forward network, with the deviation divided by sqrt(2 L), so that the sum of what 2 L parts add to a
state does not grow with depth (Shoeybi et al. 2019; so was ModernBERT trained). The deviation is that of the
normal distribution before its tails are cut, as in their code; what is drawn has 0.88 of it. ModernBERT also
draws classifiers with 1 / sqrt(D); here heads have the spec's deviation.

``zero_out``: as ``normal``, and output projections 0, so that every layer begins as the identity of a
pre-norm encoder (Zhang, Dauphin & Ma 2019, who do so for the last layer of each residual branch).
"""

CUT = 2.0
"""Deviations at which ``megatron`` cuts the tails."""


def initialize(encoder: nn.Module, std: float, layers: int, how: Initialization = "normal") -> None:
    """Draw every weight of an encoder anew, in place, from torch's global generator.

    Args:
        encoder: the module that holds the layers, embedding and heads.
        std: the deviation of weights.
        layers: how many layers run, those that share weights each counted.
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
                own = std / math.sqrt(2 * layers) if id(module) in outputs else std
                nn.init.trunc_normal_(module.weight, std=own, a=-CUT * own, b=CUT * own)
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
