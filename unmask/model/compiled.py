"""Training steps with fewer, larger kernels: what a layer does token by token, compiled by torch.

Each layer becomes two compiled parts around its attention: projections with rotary positions, and
everything from the residual sum to the layer's end (norms, feed-forward, residuals). Attention between them
runs as the chosen kernel, which is a kernel of its own already. Layers of one shape share what was compiled.

Parts are compiled without gaps: what torch cannot compile is an error, not a slower run. The first batch
compiles for its number of tokens, a second number for all numbers; batches cut to one token budget need only
the first.
"""

from collections.abc import Callable
from typing import Any

import torch

from unmask.errors import InvalidRequest
from unmask.model.encoder import Encoder
from unmask.model.layers.attention import SoftmaxMixer
from unmask.model.layers.block import Block


def compile_blocks(encoder: Encoder, *, backend: str = "inductor", dynamic: bool | None = None) -> Encoder:
    """The same encoder, whose layers run compiled from now on; weights and their names stay as they are.

    Args:
        encoder: changed in place, and given back.
        backend: of `torch.compile`.
        dynamic: True compiles for any number of tokens at once, False for every number anew; None for one
            number first and for all when a second comes.

    Raises:
        InvalidRequest: it is compiled already.
    """
    if is_compiled(encoder):
        raise InvalidRequest("the encoder's blocks are compiled already")

    def compiled(part: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(part, fullgraph=True, backend=backend, dynamic=dynamic)

    for block in encoder.layers:
        assert isinstance(block, Block)
        # Instances hide the methods of their class; nothing becomes a module, so no name changes.
        block.__dict__["after_attention"] = compiled(block.after_attention)
        if isinstance(block.attention, SoftmaxMixer):
            block.attention.__dict__["project"] = compiled(block.attention.project)
    return encoder


def is_compiled(encoder: Encoder) -> bool:
    """Whether `compile_blocks` was called for it."""
    return any("after_attention" in block.__dict__ for block in encoder.layers)
