"""Native layers below an encoder's own heads, which are torch modules."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.engines.computed import LastStates
from unmask.engines.native.program import unsupported_batch
from unmask.engines.torch_engine import TorchEngine
from unmask.text.batch import PackedBatch


class EngineWithHeads(TorchEngine):
    """A `TorchEngine` whose last hidden states come from the native library where it computes them.

    What the library does not compute runs in torch, by an encoder that is made when it is first needed: the
    states of all layers, global tokens, queries that documents share, tokens that are not attended to.

    Args:
        layers: in the library, or states that they have computed.
        precision: of the linear layers.
        heads: an encoder without layers.
        in_torch: gives the encoder that computes everything else, made at its first call.
    """

    def __init__(
        self, layers: LastStates, precision: str, heads: Encoder, in_torch: Callable[[], Encoder]
    ) -> None:
        self._layers, self._precision, self._heads, self._in_torch = layers, precision, heads, in_torch

    @property
    def encoder(self) -> Encoder:
        """The encoder in torch, optimized for inference."""
        return self._in_torch()

    @property
    def parts(self) -> Encoder:
        """See `TorchEngine`."""
        return self._heads

    @property
    def dtype(self) -> str:
        """See `Engine`."""
        return self._precision

    def states(self, batch: PackedBatch, *, exact: bool = False) -> Tensor:
        """See `TorchEngine`."""
        if unsupported_batch(self.spec, batch) is not None:
            x_TD = self.encoder.encode(batch)  # in int8 its states have another dtype than the heads
        else:
            x_TD = torch.from_numpy(self._layers.hidden_states(batch, torch.get_num_threads()))
        return x_TD if exact else x_TD.to(self._heads.embedding.words.weight.dtype)
