"""The engine whose embedding, layers and final norm run in the native library, and heads in numpy.

Torch is imported by what the library does not compute: the states of all layers, texts for which
`unsupported_batch` has a reason, and the enhanced mask decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import require_torch
from unmask.engines.engine import OUTPUTS, ComputedStates, Floats, LastStates, Layers
from unmask.engines.native.library import connected, library_reason
from unmask.engines.native.parts import Float32s, Heads, Weights
from unmask.engines.native.program import NativeLayers, unsupported_batch, unsupported_encoder
from unmask.engines.native.threads import thread_count
from unmask.spec import CheckpointOutput, EncoderSpec, MultiVector, PooledVector, SparseVector
from unmask.spec.encoder import why_no_decoder
from unmask.text.batch import PackedBatch

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder
    from unmask.engines.torch_engine import TorchEngine


class NativeEngine:
    """An `Engine` of native layers and of heads in float32, whatever the precision of the layers.

    Args:
        layers: the layers in the library, or states that they have computed.
        precision: of its linear layers.
        heads: what follows the layers.
        in_torch: makes the encoder that computes what the library does not.
    """

    outputs = OUTPUTS

    def __init__(
        self, layers: LastStates, precision: str, heads: Heads, in_torch: Callable[[], Encoder]
    ) -> None:
        self._layers, self._precision, self._in_torch = layers, precision, in_torch
        self.heads = heads
        """What follows the layers."""
        self._encoder: Encoder | None = None
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
        """The encoder in torch, optimized for inference; made when it is first needed.

        Raises:
            MissingExtra: torch is not installed.
        """
        require_torch("the module of an encoder")
        with self._making:
            if self._encoder is None:
                self._encoder = self._in_torch()
            return self._encoder

    def with_states(self, batch: PackedBatch) -> NativeEngine:
        """See `Engine`."""
        if unsupported_batch(self.spec, batch) is not None:
            return self
        states_TD = self._layers.hidden_states(batch, thread_count())
        computed = ComputedStates(self._layers, batch, states_TD)
        return NativeEngine(computed, self._precision, self.heads, lambda: self.encoder)

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """See `Engine`."""
        if layers != "last":
            return self._torch_engine("the states of all layers").hidden_states(batch, layers)
        return self._states(batch)

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.heads.embed(self._states(batch), batch.layout, output, skipped=skipped)

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """See `Engine`."""
        if role == "enhanced" and why_no_decoder(self.spec) is None:
            return self._torch_engine("the enhanced mask decoder").logits(batch, role, tokens)
        return self.heads.logits(role, self._states(batch), batch.layout, tokens)

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.heads.token_vectors(self._states(batch)[tokens], output)

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """See `Engine`."""
        x_TD = self._states(batch)
        for sequence in range(batch.layout.sequence_count):
            yield self.heads.word_weights(x_TD[batch.layout.rows(sequence)], output)

    def static_weights(self) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.heads.static_weights()

    def _states(self, batch: PackedBatch) -> Float32s:
        """The last hidden states, (T, D), by torch where the library does not compute them."""
        reason = unsupported_batch(self.spec, batch)
        if reason is None:
            return self._layers.hidden_states(batch, thread_count())
        states_TD: Float32s = self._torch_engine(f"a text of which {reason}").hidden_states(batch)
        return states_TD

    def _torch_engine(self, purpose: str) -> TorchEngine:
        require_torch(purpose)
        from unmask.engines.torch_engine import TorchEngine

        return TorchEngine(self.encoder)


def native_reason(spec: EncoderSpec, precision: str) -> str | None:
    """Why an encoder cannot run natively in a precision, as the end of "... because"; None if it can."""
    return library_reason(precision) or unsupported_encoder(spec)


def native_engine(
    spec: EncoderSpec,
    weights: Weights,
    precision: str,
    in_torch: Callable[[], Encoder],
    output: CheckpointOutput | None = None,
) -> NativeEngine:
    """The engine of an encoder for which `native_reason` returns None.

    Args:
        spec: of the encoder.
        weights: its tensors in float32, and those of its output's layers; heads read theirs when needed.
        precision: of its linear layers.
        in_torch: see `NativeEngine`.
        output: what its checkpoint gives; None for none.
    """
    library = connected()
    assert not isinstance(library, str)
    layers = NativeLayers(spec, weights, precision, library.functions)
    heads = Heads(spec, weights, output, in_halves=precision == "bfloat16")
    return NativeEngine(layers, precision, heads, in_torch)
