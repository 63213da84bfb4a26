"""The engine whose embedding, layers and final norm run in the native library; heads are torch modules."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmask.model.encoder import Encoder
from unmask.model.native.library import connected, library_reason
from unmask.model.native.program import NativeLayers, unsupported_batch, unsupported_encoder
from unmask.model.spec import EncoderSpec
from unmask.model.torch_engine import TorchEngine
from unmask.text.batch import PackedBatch


class NativeEngine(TorchEngine):
    """An `Engine` of native layers and an encoder's own heads.

    What the library does not compute runs in torch, by an encoder that is made when it is first needed: the
    states of all layers, global tokens, queries that documents share, tokens that are not attended to.

    Args:
        encoder: a plain encoder, of which the layers are removed.
        layers: the same layers in the library.
        precision: of its linear layers.
        in_torch: makes the encoder that computes everything else.
    """

    def __init__(
        self, encoder: Encoder, layers: NativeLayers, precision: str, in_torch: Callable[[], Encoder]
    ) -> None:
        encoder.layers = nn.ModuleList()
        self._heads, self._layers, self._precision, self._in_torch = encoder, layers, precision, in_torch
        self._made: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder in torch, optimized for inference."""
        if self._made is None:
            self._made = self._in_torch()
        return self._made

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
            return self.encoder.encode(batch)
        x_TD = torch.from_numpy(self._layers.hidden_states(batch, torch.get_num_threads()))
        return x_TD if exact else x_TD.to(self._heads.embedding.words.weight.dtype)


def native_reason(spec: EncoderSpec, precision: str) -> str | None:
    """Why an encoder cannot run natively in a precision, as the end of "... because"; None if it can."""
    return library_reason(precision) or unsupported_encoder(spec)


def native_engine(encoder: Encoder, precision: str, in_torch: Callable[[], Encoder]) -> NativeEngine:
    """The engine of an encoder for which `native_reason` returns None. Its layers are removed.

    Args:
        encoder: a plain encoder on a CPU in evaluation mode; in float32 for ``int8``.
        precision: of its linear layers.
        in_torch: see `NativeEngine`.
    """
    library = connected()
    assert not isinstance(library, str)
    return NativeEngine(encoder, NativeLayers(encoder, precision, library.functions), precision, in_torch)
