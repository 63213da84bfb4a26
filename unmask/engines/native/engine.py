"""The engine whose embedding, layers and final norm run in the native library.

Torch is imported by what follows the layers, sentence embeddings without dense layers excepted, and by what
the library does not compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.engines.computed import ComputedStates, LastStates
from unmask.engines.engine import OUTPUTS, Floats, Layers
from unmask.engines.native.library import connected, library_reason
from unmask.engines.native.pooling import has_dense_layers, pooled
from unmask.engines.native.program import NativeLayers, Weights, unsupported_batch, unsupported_encoder
from unmask.engines.native.threads import thread_count
from unmask.spec import EncoderSpec, MultiVector, PooledVector, SparseVector
from unmask.text.batch import PackedBatch

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder
    from unmask.engines.native.with_heads import EngineWithHeads


class NativeEngine:
    """An `Engine` of native layers, with an encoder's own heads.

    Args:
        layers: the layers in the library, or states that they have computed.
        precision: of its linear layers.
        heads: makes an encoder of which the layers are not read: for its heads, and its output's layers.
        in_torch: makes the encoder that computes what the library does not.
    """

    outputs = OUTPUTS

    def __init__(
        self,
        layers: LastStates,
        precision: str,
        heads: Callable[[], Encoder],
        in_torch: Callable[[], Encoder],
    ) -> None:
        self._layers, self._precision, self._heads, self._in_torch = layers, precision, heads, in_torch
        self._encoder: Encoder | None = None
        self._with_heads: EngineWithHeads | None = None
        self._making = RLock()

    @property
    def spec(self) -> EncoderSpec:
        """See `Engine`."""
        return self._layers.spec

    @property
    def dtype(self) -> str:
        """See `Engine`."""
        return self._precision

    @property
    def device(self) -> str:
        """See `Engine`."""
        return "cpu"

    @property
    def encoder(self) -> Encoder:
        """The encoder in torch, optimized for inference; made when it is first needed."""
        with self._making:
            if self._encoder is None:
                self._encoder = self._in_torch()
            return self._encoder

    @property
    def with_heads(self) -> EngineWithHeads:
        """The engine of the same layers and torch modules, made when it is first needed."""
        with self._making:
            if self._with_heads is None:
                from unmask.engines.native.with_heads import EngineWithHeads

                self._with_heads = EngineWithHeads(
                    self._layers, self._precision, self._heads(), lambda: self.encoder
                )
            return self._with_heads

    def with_states(self, batch: PackedBatch) -> NativeEngine:
        """See `Engine`."""
        if unsupported_batch(self.spec, batch) is not None:
            return self
        states_TD = self._layers.hidden_states(batch, thread_count())
        computed = ComputedStates(self._layers, batch, states_TD)
        return NativeEngine(computed, self._precision, lambda: self.with_heads.parts, lambda: self.encoder)

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """See `Engine`."""
        if layers != "last" or unsupported_batch(self.spec, batch) is not None:
            return self.with_heads.hidden_states(batch, layers)
        return self._layers.hidden_states(batch, thread_count())

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> NDArray[np.float32]:
        """See `Engine`."""
        if has_dense_layers(output) or unsupported_batch(self.spec, batch) is not None:
            return self.with_heads.embed(batch, output, skipped=skipped)
        x_TD = self._layers.hidden_states(batch, thread_count())
        return pooled(x_TD, batch.layout, output, skipped=skipped)

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """See `Engine`."""
        return self.with_heads.logits(batch, role, tokens)

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.with_heads.token_vectors(batch, output, tokens)

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """See `Engine`."""
        return self.with_heads.word_weights(batch, output)

    def static_weights(self) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.with_heads.static_weights()


def native_reason(spec: EncoderSpec, precision: str) -> str | None:
    """Why an encoder cannot run natively in a precision, as the end of "... because"; None if it can."""
    return library_reason(precision) or unsupported_encoder(spec)


def native_engine(
    spec: EncoderSpec,
    weights: Weights,
    precision: str,
    heads: Callable[[], Encoder],
    in_torch: Callable[[], Encoder],
) -> NativeEngine:
    """The engine of an encoder for which `native_reason` returns None.

    Args:
        spec: of the encoder.
        weights: its tensors in float32, those of its heads excepted.
        precision: of its linear layers.
        heads: see `NativeEngine`.
        in_torch: see `NativeEngine`.
    """
    library = connected()
    assert not isinstance(library, str)
    layers = NativeLayers(spec, weights, precision, library.functions)
    return NativeEngine(layers, precision, heads, in_torch)
