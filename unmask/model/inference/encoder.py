"""An encoder that runs whole layers for inference, and its modules whenever somebody looks inside."""

from typing import Any

import torch
from torch import Tensor, nn

from unmask.model.encoder import Encoder
from unmask.model.hooks import Hook
from unmask.model.inference.lean import Attend, LeanBlock, attend_by, cannot_reason
from unmask.model.layers.attention import AttentionPlan
from unmask.text.batch import SequenceLayout


class InferenceEncoder(Encoder):
    """An `Encoder` whose modules were replaced for inference; its layers run as `LeanBlock`.

    It shares the modules of the encoder that it is made of. With a hook, with gradients, or where only some layers
    run, the modules themselves run.
    """

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(encoder.__dict__)
        blocks = [None if cannot_reason(block) else LeanBlock(block) for block in encoder.layers]
        groups: dict[Any, int] = {}
        self._lean = [blocks[weights] for weights in encoder.spec.weights_of_layer]
        self._group = [groups.setdefault(_needs(encoder, layer), layer) for layer in range(len(self._lean))]

    def forward(
        self,
        ids_T: Tensor,
        layout: SequenceLayout,
        segments_T: Tensor | None = None,
        *,
        layers: int | None = None,
        hook: Hook | None = None,
    ) -> Tensor:
        """See `Encoder.forward`."""
        inside = hook is not None or layers is not None
        if inside or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return super().forward(ids_T, layout, segments_T, layers=layers, hook=hook)
        self._check(ids_T, layout)
        segments_T = torch.zeros_like(ids_T) if segments_T is None else segments_T
        embedded_TD = x_TD = self.embedding(ids_T, segments_T, layout)
        table_PD = None if self.distances is None else self.distances()
        made: dict[Any, Any] = {}
        plans = {first: self.plan(self.block(first), layout, x_TD, table_PD, made) for first in set(self._group)}
        attends: dict[int, Attend] = {
            first: attend_by(plan) for first, plan in plans.items() if isinstance(plan, AttentionPlan)
        }
        convolution = self.convolution
        for layer, (lean, first) in enumerate(zip(self._lean, self._group, strict=True)):
            if lean is None:
                x_TD = self.block(layer)(x_TD, plans[first], layer, None)
            else:
                x_TD = lean(x_TD, attends[first])
            if layer == 0 and convolution is not None:
                x_TD = convolution(embedded_TD, x_TD, layout)
        hidden_TD: Tensor = self.final_norm(x_TD)
        return hidden_TD


def _needs(encoder: Encoder, layer: int) -> Any:
    """Layers for which this is equal can share a plan."""
    block = encoder.block(layer)
    own = getattr(block.attention, "globals", None) is not None
    return type(block.attention), encoder.spec.layers[layer].mixer, own
