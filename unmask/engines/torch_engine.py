"""The engine that runs torch modules."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder import heads
from unmask.encoder.decoder import predicts_by_decoder, word_states
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.engines.engine import OUTPUTS, Floats, Layers, SequenceRows
from unmask.engines.inference import QuantizedLinear
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec, MaskedLM, MultiVector, PooledVector, SparseVector
from unmask.spec.encoder import head_of
from unmask.spec.heads import is_per_token
from unmask.text.batch import PackedBatch


class TorchEngine:
    """An `Encoder`, plain or optimized for inference, as an `Engine`. Results have no gradients."""

    outputs = OUTPUTS
    """The kinds of `CheckpointOutput` that it computes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._quantized = any(isinstance(module, QuantizedLinear) for module in encoder.modules())

    @property
    def encoder(self) -> Encoder:
        """The module that runs."""
        return self._encoder

    @property
    def parts(self) -> Encoder:
        """The module that holds the embedding and all that follows the layers."""
        return self.encoder

    def states(self, batch: PackedBatch, *, exact: bool = False) -> Tensor:
        """The last hidden states of a batch, (T, D).

        Args:
            batch: what to run.
            exact: as the layers computed them; else in the type of the weights, which heads need.
        """
        return self.encoder.encode(batch)

    def with_states(self, batch: PackedBatch) -> "TorchEngine":
        """See `Engine`."""
        with torch.inference_mode():
            return EngineOfStates(self, batch, self.states(batch))

    @property
    def spec(self) -> EncoderSpec:
        """See `Engine`."""
        return self.parts.spec

    @property
    def dtype(self) -> str:
        """See `Engine`."""
        if self._quantized:
            return "int8"
        return str(self.parts.embedding.words.weight.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """See `Engine`."""
        return str(self.parts.device)

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """See `Engine`."""
        states: list[Tensor] = []

        def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
            if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
                states.append(tensor)

        with torch.inference_mode():
            if layers == "last":
                return _on_host(self.states(batch, exact=True))
            x_TD = self.encoder.encode(batch, hook=record)
            return _on_host(torch.stack(self.encoder.levels(states, x_TD)))

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """See `Engine`."""
        parts, head = self.parts, head_of(self.spec, role)
        if tokens is not None and not is_per_token(head):
            raise InvalidRequest(f"the {role} head reads a whole sequence; leave tokens out")
        every = np.arange(batch.layout.token_count) if tokens is None else tokens
        with torch.inference_mode():
            if predicts_by_decoder(parts, role):
                states_MD = word_states(self.encoder, role, batch, every.tolist())
                return _on_host(self.encoder.logits(role, states_MD, batch.layout))
            x_TD = self.states(batch)
            if tokens is None:
                return _on_host(parts.logits(role, x_TD, batch.layout))
            chosen_M = torch.from_numpy(tokens).to(parts.device)
            if isinstance(head, MaskedLM):  # compute vocabulary logits only for the chosen tokens
                return _on_host(parts.logits(role, x_TD[chosen_M], batch.layout))
            return _on_host(parts.logits(role, x_TD, batch.layout)[chosen_M])

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> NDArray[np.float32]:
        """See `Engine`."""
        layers = self.parts.output if output.projections else None
        with torch.inference_mode():
            x_TD = self.states(batch, exact=not layers)
            e_SE = heads.embed(x_TD, batch.layout, output, layers, skipped=skipped)
            return e_SE.float().cpu().numpy()

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """See `Engine`."""
        with torch.inference_mode():
            x_MD = self.states(batch)[torch.from_numpy(tokens).to(self.parts.device)]
            e_ME = heads.token_vectors(x_MD, self.parts.output, normalize=output.normalize)
            return e_ME.float().cpu().numpy()

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """See `Engine`."""
        parts, layout = self.parts, batch.layout
        with torch.inference_mode():
            x_TD = self.states(batch)
        for sequence in range(layout.sequence_count):
            with torch.inference_mode():
                x_ND = x_TD[layout.rows(sequence)]
                w_V = heads.word_weights(x_ND, lambda x: parts.logits("masked", x, layout), output)
                yield w_V.float().cpu().numpy()

    def static_weights(self) -> NDArray[np.float32]:
        """See `Engine`."""
        for layer in self.parts.output:
            if isinstance(layer, heads.StaticWeights):
                weight_NK: NDArray[np.float32] = layer.weight.detach().float().cpu().numpy()
                return weight_NK
        raise InvalidRequest("the encoder has no weights of words for queries; use another checkpoint")


class EngineOfStates(TorchEngine):
    """A `TorchEngine` of which the last hidden states of some sequences have been computed.

    Args:
        engine: computed them, and computes those of other sequences.
        batch: the sequences.
        states_TD: their last hidden states.
    """

    def __init__(self, engine: TorchEngine, batch: PackedBatch, states_TD: Tensor) -> None:
        self._engine, self._rows, self._states_TD = engine, SequenceRows(batch), states_TD

    @property
    def encoder(self) -> Encoder:
        """See `TorchEngine`."""
        return self._engine.encoder

    @property
    def parts(self) -> Encoder:
        """See `TorchEngine`."""
        return self._engine.parts

    @property
    def dtype(self) -> str:
        """See `Engine`."""
        return self._engine.dtype

    def states(self, batch: PackedBatch, *, exact: bool = False) -> Tensor:
        """See `TorchEngine`."""
        if batch not in self._rows:
            return self._engine.states(batch, exact=exact)
        return self._states_TD[torch.from_numpy(self._rows.of(batch)).to(self._states_TD.device)]


def _on_host(tensor: Tensor) -> Floats:
    exact = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.to(exact).cpu().numpy()
