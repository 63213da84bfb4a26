"""Training steps with fewer, larger kernels: the token-wise parts of a layer, compiled by torch.

Each layer becomes two compiled parts around its attention: projections with rotary positions, and
everything from the residual sum to the layer's end (norms, feed-forward, residuals). Attention between them
runs in the chosen kernel, uncompiled. Layers of the same shape share the compiled code.

Parts are compiled without graph breaks: code that torch cannot compile is an error, not a slower run. The
first batch compiles for its number of tokens, and a second number compiles for all numbers; batches with a
constant number of tokens need only the first compilation.
"""

from collections.abc import Callable
from typing import Any

import torch

from unmask.encoder.encoder import Encoder
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.parts import ExpertNetwork
from unmask.errors import InvalidRequest


def compile_blocks(encoder: Encoder, *, backend: str = "inductor", dynamic: bool | None = None) -> Encoder:
    """Compile the layers of an encoder in place; weights and their names stay the same.

    Args:
        encoder: changed in place, and returned.
        backend: the backend of `torch.compile`.
        dynamic: True compiles for any number of tokens, False separately for every number; None compiles for
            one number first, and for all numbers when a second occurs.

    Raises:
        InvalidRequest: it is compiled already.
    """
    if is_compiled(encoder):
        raise InvalidRequest("the encoder's blocks are compiled already")
    if any(isinstance(network, ExpertNetwork) for network in encoder.modules()):
        raise InvalidRequest(
            "a mixture of experts cannot be compiled, because the number of tokens of each expert differs "
            "from step to step; leave compiling out"
        )

    def compiled(part: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(part, fullgraph=True, backend=backend, dynamic=dynamic)

    for block in encoder.layers:
        assert isinstance(block, Block)
        # The attributes of an instance override its class's methods; no module is added, so no name changes.
        block.__dict__["after_attention"] = compiled(block.after_attention)
        if isinstance(block.attention, SoftmaxMixer):
            block.attention.__dict__["project"] = compiled(block.attention.project)
    return encoder


def is_compiled(encoder: Encoder) -> bool:
    """Whether `compile_blocks` was called for the encoder."""
    return any("after_attention" in block.__dict__ for block in encoder.layers)
