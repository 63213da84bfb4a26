"""An encoder that runs whole layers for inference, and its modules whenever somebody looks inside."""

from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook
from unmask.encoder.layers.attention import AttentionPlan
from unmask.encoder.layers.block import Block, Plan
from unmask.engines.inference.lean import (
    Attend,
    LeanBlock,
    Rectangle,
    attend_by,
    embed,
    layer_reason,
    norm_of,
)
from unmask.text.batch import SequenceLayout

REMEMBERED = 64
"""Single texts of up to so many tokens share one preparation for each length."""

Prepared = dict[int, tuple[Plan, Attend | None]]
"""The plan of each group of layers, by its first layer, and attention by it."""


class InferenceEncoder(Encoder):
    """An `Encoder` whose modules were replaced for inference; its layers run as `LeanBlock`.

    It shares the modules of the encoder that it is made of. With a hook, with gradients, or if only some
    layers run, the modules themselves run.
    """

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(encoder.__dict__)
        blocks = [
            LeanBlock(block) if isinstance(block, Block) and not layer_reason(block) else None
            for block in encoder.layers
        ]
        self._lean = [blocks[weights] for weights in encoder.spec.weights_of_layer]
        first_of: dict[Any, int] = {}
        self._first = [first_of.setdefault(_needs(encoder, layer), layer) for layer in range(len(self._lean))]
        self._firsts = tuple(first_of.values())
        self._final_norm = norm_of(encoder.final_norm)
        self._remembered: dict[tuple[int, str | None], Prepared] = {}

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
        return self._run(ids_T, layout, segments_T)

    def _run(self, ids_T: Tensor, layout: SequenceLayout, segments_T: Tensor) -> Tensor:
        embedded_TD = x_TD = embed(self.embedding, ids_T, segments_T, layout)
        prepared, convolution = self._prepared(layout, x_TD), self.convolution
        for layer, (lean, first) in enumerate(zip(self._lean, self._first, strict=True)):
            plan, attend = prepared[first]
            if lean is None or attend is None:
                x_TD = self.block(layer)(x_TD, plan, layer, None, self.read(embedded_TD, layer))
            else:
                x_TD = lean(x_TD, attend)
            if layer == 0 and convolution is not None:
                x_TD = convolution(embedded_TD, x_TD, layout)
        normed_TD = x_TD if self._final_norm is None else self._final_norm(x_TD)
        return normed_TD if self.spec.output_width is None else self.final_map(normed_TD)

    def _prepared(self, layout: SequenceLayout, x_TD: Tensor) -> Prepared:
        """Everything about attention that the batch decides, for each group of layers with equal needs."""
        tokens = layout.token_count
        alone = layout.sequence_count == 1 and tokens <= REMEMBERED and layout.expansion is None
        plain = alone and layout.globals_T is None and layout.unattended_T is None
        known = self._remembered.get((tokens, self.kernel)) if plain else None
        if known is not None:
            return known
        table_PD = None if self.distances is None else self.distances()
        plans: dict[Any, Plan] = {}
        prepared: Prepared = {}
        for first in self._firsts:
            plan = self.plan(self.block(first), layout, x_TD, table_PD, plans)
            prepared[first] = plan, attend_by(plan) if isinstance(plan, AttentionPlan) else None
        if plain and all(isinstance(attend, Rectangle) for _, attend in prepared.values()):
            self._remembered[tokens, self.kernel] = prepared
        return prepared


def _needs(encoder: Encoder, layer: int) -> Any:
    """Layers for which this is equal can share a plan."""
    separate = getattr(encoder.block(layer).attention, "globals", None) is not None
    return encoder.spec.layers[layer].mixer, separate
