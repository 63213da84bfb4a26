"""Layers run again from an activation cache, with an intervention or with gradients."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook, HookPoint
from unmask.encoder.layers import Plan
from unmask.engines.inference.linear import PackedLinear, QuantizedLinear
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.target import Scale, TargetScore
from unmask.interpret.watch import Watch, unwatched

Change = Callable[[Tensor], Tensor]
"""Mixed values of all heads side by side, (N, H K), to what is to go on in their place."""


class Mixed(NamedTuple):
    """What a layer's heads mixed, and how a score changes with it, (N, H, K) each.

    Of the enhanced mask decoder it is what one token got in each pass of the last layer, (passes, H, K).
    """

    layer: int
    o_NHK: Tensor
    gradient_NHK: Tensor
    decoder_q_NHK: Tensor | None = None
    """The token's queries in the passes of the decoder; None for a layer."""


class InterventionRun:
    """One encoder and the layout of one activation cache.

    Args:
        cache: the activation cache of the text.
        encoder: instead of the cache's encoder, the same weights in modules that support gradients.
    """

    def __init__(self, cache: ActivationCache, encoder: Encoder | None = None) -> None:
        self.cache = cache
        self.encoder = encoder or cache.encoder
        self.layers = len(self.encoder.spec.layers)
        self._layout = cache.batch.layout
        with torch.no_grad():
            self._table_PD = None if self.encoder.distances is None else self.encoder.distances()
        self._plans: dict[bool, dict[Any, Plan]] = {False: {}, True: {}}

    def layer(self, layer: int, x_ND: Tensor, hook: Hook | None = None) -> Tensor:
        """The state after a layer, from the state before it."""
        encoder, block = self.encoder, self.encoder.block(layer)
        plans = self._plans[torch.is_grad_enabled()]
        y_ND: Tensor = block(
            x_ND, encoder.plan(block, self._layout, x_ND, self._table_PD, plans), layer, hook
        )
        if layer == 0 and encoder.convolution is not None:
            y_ND = encoder.convolution(x_ND, y_ND, self._layout)
        return y_ND

    def score(
        self, score: TargetScore, layer: int, change: Change | None = None, watch: Watch | None = None
    ) -> float:
        """A score with ``change`` made to what the heads of ``layer`` mixed; all layers below as they were.

        Where the enhanced mask decoder makes the score, a change to the last layer is one to both passes of
        the decoder, which are that layer.
        """
        last, watch = self.layers - 1, watch or unwatched
        x_ND = self.cache.states[layer]
        for at in range(layer, last if score.by_decoder else self.layers):
            with torch.no_grad(), self.changed(layer, change if at == layer else None):
                x_ND = self.layer(at, x_ND)
            watch(
                "running layers", at + 1 - layer, self.layers - layer
            )  # outside: others may run the encoder
        with self.changed(layer, change if score.by_decoder and layer == last else None):
            number = score.of(x_ND)
        if not math.isfinite(number):
            raise NonFiniteResult(f"the {score.unit} is not finite; try dtype='float32'")
        return number

    def mixed(self, layer: int) -> Tensor:
        """What the heads of a layer mixed, (N, H, K)."""
        heard: list[Tensor] = []

        def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
            if place is HookPoint.MIXED:
                heard.append(tensor)

        with torch.no_grad():
            self.layer(layer, self.cache.states[layer], record)
        return heard[0]

    @contextmanager
    def changed(self, layer: int, change: Change | None) -> Iterator[None]:
        """While it lasts, the output projection of a layer reads something else."""
        if change is None:
            yield
            return
        out = self.encoder.block(layer).attention.out
        hook = out.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))
        try:
            yield
        finally:
            hook.remove()

    def descend(self, score: TargetScore, scale: Scale, what: str, watch: Watch | None) -> Iterator[Mixed]:
        """What each layer's heads mixed and its gradient, from the last layer down, one layer at a time.

        Only one layer's graph exists at once. Where the enhanced mask decoder makes the score, its passes
        come first, as the last layer, whose ordinary run has no part in the score.

        Raises:
            InvalidRequest: the encoder gives no gradients.
        """
        check_gradients(self.encoder)
        watch = watch or unwatched
        states, layers = self.cache.states, self.layers
        dtype = self.encoder.embedding.words.weight.dtype
        if score.by_decoder:
            layers -= 1
            made, gradient_ND = _through_decoder(score, states[layers].to(dtype), scale, layers)
            yield made
        else:
            gradient_ND = _gradient(score, states[-1].to(dtype), scale)
        for layer in reversed(range(layers)):
            watch(what, self.layers - 1 - layer, self.layers)
            made, gradient_ND = self._back(layer, states[layer].to(dtype), gradient_ND)
            yield made
        watch(what, self.layers, self.layers)

    def _back(self, layer: int, x_ND: Tensor, gradient_ND: Tensor) -> tuple[Mixed, Tensor]:
        """One layer forward and backward: gradients by what its heads mixed, and by its input."""
        heard: list[Tensor] = []

        def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
            if place is HookPoint.MIXED:
                heard.append(tensor)

        with torch.enable_grad():
            x_ND = x_ND.detach().requires_grad_()
            y_ND = self.layer(layer, x_ND, record)
            below_ND, gradient_NHK = torch.autograd.grad(y_ND, [x_ND, heard[0]], gradient_ND)
        return Mixed(layer, heard[0].detach(), gradient_NHK), below_ND


def _gradient(score: TargetScore, x_ND: Tensor, scale: Scale) -> Tensor:
    """Of the score by the states that its head reads."""
    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        (gradient_ND,) = torch.autograd.grad(score.value(x_ND, scale), [x_ND])
    return gradient_ND


def _through_decoder(score: TargetScore, x_ND: Tensor, scale: Scale, layer: int) -> tuple[Mixed, Tensor]:
    """The passes of the decoder, and the gradient by the states before the last layer."""
    heard: dict[HookPoint, list[Tensor]] = {HookPoint.QUERY: [], HookPoint.MIXED: []}

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        heard[place].append(tensor)

    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        number = score.value(x_ND, scale, record)
        gradient_ND, *of_passes = torch.autograd.grad(number, [x_ND, *heard[HookPoint.MIXED]])
    q_NHK, o_NHK = (torch.cat(heard[place]).detach() for place in (HookPoint.QUERY, HookPoint.MIXED))
    return Mixed(layer, o_NHK, torch.cat(of_passes), q_NHK), gradient_ND


def check_gradients(encoder: Encoder) -> None:
    """Check that gradients can be computed through the encoder.

    Raises:
        InvalidRequest: the encoder was optimized for inference.
    """
    if any(isinstance(module, PackedLinear | QuantizedLinear) for module in encoder.modules()):
        raise InvalidRequest(
            "the encoder was rewritten for inference and gives no gradients; give the plain one beside it "
            "(encoder=model.trainable_encoder(replace=False))"
        )
