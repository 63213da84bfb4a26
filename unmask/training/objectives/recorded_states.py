"""Run an encoder once, and keep the states and attention inputs of some layers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.kernels import AttentionBias, DistanceBias, RelativeBias
from unmask.spec import Disentangled, RelativePositionBias, SoftmaxAttention
from unmask.text.batch import PackedBatch
from unmask.training.objectives.distillation_losses import AttentionParts


@dataclass(frozen=True)
class RecordedStates:
    """Tensors kept from one forward pass; gradients flow through all of them."""

    output_TD: Tensor
    """The encoder's output."""
    states: Mapping[int, Tensor]
    """By layer, (T, D); for the last layer, the output."""
    attention: Mapping[int, AttentionParts]
    """By layer."""


def record_states(
    encoder: Encoder,
    batch: PackedBatch,
    state_layers: Iterable[int] = (),
    attention_layers: Iterable[int] = (),
) -> RecordedStates:
    """Run the encoder and keep the requested tensors.

    Args:
        encoder: any encoder.
        batch: its input.
        state_layers: layers whose states are kept.
        attention_layers: layers whose attention inputs are kept; they must use softmax attention.
    """
    states: dict[int, Tensor] = {}
    kept: dict[tuple[HookPoint, int], Tensor] = {}
    of_states, of_attention = set(state_layers), set(attention_layers)

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place is HookPoint.LAYER and layer in of_states:
            states[layer] = tensor
        elif place is not HookPoint.LAYER and layer in of_attention:
            kept[place, layer] = tensor

    output_TD = encoder.encode(batch, hook=record if of_states or of_attention else None)
    last = len(encoder.spec.layers) - 1
    if last in of_states:
        states[last] = output_TD
    return RecordedStates(output_TD, states, {layer: _parts(encoder, kept, layer) for layer in of_attention})


def _parts(encoder: Encoder, kept: Mapping[tuple[HookPoint, int], Tensor], layer: int) -> AttentionParts:
    mixer = encoder.spec.layers[layer].mixer
    assert isinstance(mixer, SoftmaxAttention)
    if isinstance(mixer.position, Disentangled):
        tables = (kept.get((place, layer)) for place in (HookPoint.DISTANCE_KEY, HookPoint.DISTANCE_QUERY))
        bias = AttentionBias(distances=DistanceBias(mixer.position, *tables))
    elif isinstance(mixer.position, RelativePositionBias):
        bias = AttentionBias(relative=RelativeBias(mixer.position, kept[HookPoint.RELATIVE_BIAS, layer]))
    else:
        bias = AttentionBias.of(mixer.position, mixer.heads)
    q_THK, k_THK, v_THK = (kept[place, layer] for place in (HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE))
    return AttentionParts(q_THK, k_THK, v_THK, bias, mixer.pattern)
