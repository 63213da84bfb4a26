"""Layers run again to explain a target: with something changed in them, or with gradients.

Several copies of the text may run at once, end to end in one packed batch: the same text with a different
change in each.

Axes: I features that the output projection reads.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook, HookPoint
from unmask.encoder.layers.block import Plan
from unmask.engines.inference.linear import PackedLinear, QuantizedLinear
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.target import Scale, TargetScore

Change = Callable[[Tensor], Tensor]
"""Mixed values of all heads side by side, (N, H K), to what is to go on in their place."""


class Mixed(NamedTuple):
    """The mixed values of the heads of a layer, and the gradient of a score by them, (N, H, K) each.

    Of the enhanced mask decoder it is what one token got in each pass of the last layer, (passes, H, K).
    """

    layer: int
    o_NHK: Tensor
    gradient_NHK: Tensor
    input_gradient_ND: Tensor
    """The gradient of the score by the layer's input."""
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
        with torch.no_grad():
            self._table_PD = None if self.encoder.distances is None else self.encoder.distances()
        self._plans: dict[tuple[bool, int], dict[Any, Plan]] = {}

    def layer(
        self, layer: int, x_TD: Tensor, hook: Hook | None = None, embedded_TD: Tensor | None = None
    ) -> Tensor:
        """The states after a layer, from those before it, of one copy of the text or of several.

        A gate reads ``embedded_TD``; None: the input of the first layer, as it is here or as it was.
        """
        encoder, block, copies = self.encoder, self.encoder.block(layer), len(x_TD) // len(self.cache)
        layout = self.cache.batch.layout.repeated(copies)
        plans = self._plans.setdefault((torch.is_grad_enabled(), len(x_TD)), {})
        plan = encoder.plan(block, layout, x_TD, self._table_PD, plans)
        if embedded_TD is None:
            embedded_TD = x_TD if layer == 0 else self.cache.states[0].to(x_TD).repeat(copies, 1)
        y_TD: Tensor = block(x_TD, plan, layer, hook, encoder.read(embedded_TD, layer))
        if layer == 0 and encoder.convolution is not None:
            y_TD = encoder.convolution(x_TD, y_TD, layout)
        return y_TD

    def score_from(
        self, score: TargetScore, layer: int, x_TD: Tensor, scale: Scale, hook: Hook | None = None
    ) -> Tensor:
        """The value of the target for each copy of the text, (copies,), from the input of a layer.

        ``hook`` is called in that layer alone.

        Raises:
            NonFiniteResult: a value is not finite.
        """
        embedded_TD = x_TD if layer == 0 else None
        with torch.no_grad():
            for at in range(layer, self.layers - score.by_decoder):
                x_TD = self.layer(at, x_TD, hook if at == layer else None, embedded_TD)
            values = score.values(x_TD, scale)
        return _finite(values, score.unit_of_value(scale))

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
            watch("running layers", at + 1 - layer, self.layers - layer)
        with self.changed(layer, change if score.by_decoder and layer == last else None):
            number = score.of(x_ND)
        if not math.isfinite(number):
            raise NonFiniteResult(f"the {score.unit} is not finite; try dtype='float32'")
        return number

    def mixed(self, layer: int) -> Tensor:
        """The mixed values of the heads of a layer, (N, H, K)."""
        return self.recorded(layer, HookPoint.MIXED)

    def recorded(self, layer: int, point: HookPoint) -> Tensor:
        """The tensor at a point of a layer of the unchanged text."""
        recorded, record = _recorder(point)
        with torch.no_grad():
            self.layer(layer, self.cache.states[layer], record)
        return recorded[point][0]

    @contextmanager
    def changed(self, layer: int, change: Change | None) -> Iterator[None]:
        """While it lasts, the output projection of a layer reads something else in this thread alone.

        Other threads may run the same encoder meanwhile.
        """
        if change is None:
            yield
            return
        thread = get_ident()

        mixer = self.encoder.block(layer).attention
        own = mixer.spec.heads * mixer.spec.head_width  # convolutions beside attention follow, unchanged

        def changing(_: Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
            if get_ident() != thread:
                return None
            (x_TI,) = inputs
            changed_TI = change(x_TI[..., :own])
            return (changed_TI if x_TI.shape[-1] == own else torch.cat((changed_TI, x_TI[..., own:]), -1),)

        hook = mixer.out.register_forward_pre_hook(changing)
        try:
            yield
        finally:
            hook.remove()

    def descend(
        self, score: TargetScore, scale: Scale, what: str, watch: Watch | None, x_TD: Tensor | None = None
    ) -> Iterator[Mixed]:
        """The mixed values of each layer and their gradient, from the last layer down, one layer at a time.

        Only one layer's graph exists at once. Where the enhanced mask decoder makes the score, its passes
        come first, as the last layer, whose ordinary run has no part in the score. Instead of the text as it
        is, ``x_TD`` gives other inputs of the first layer, of one copy of it or of several.

        Raises:
            InvalidRequest: the encoder gives no gradients.
        """
        check_gradients(self.encoder)
        watch = watch or unwatched
        states, layers = self.cache.states if x_TD is None else self._states_of(x_TD), self.layers
        dtype = self.encoder.embedding.words.weight.dtype
        if score.by_decoder:
            layers -= 1
            mixed, gradient_ND = _through_decoder(score, states[layers].to(dtype), scale, layers)
            yield mixed
        else:
            gradient_ND = _gradient(score, states[-1].to(dtype), scale)
        embedded_TD = states[0].to(dtype)
        by_gates_ND = torch.zeros_like(embedded_TD)
        for layer in reversed(range(layers)):
            watch(what, self.layers - 1 - layer, self.layers)
            mixed, of_gate_ND = self._back(layer, states[layer].to(dtype), gradient_ND, embedded_TD)
            if of_gate_ND is not None:
                by_gates_ND += of_gate_ND
                if layer == 0:  # whose input is what all gates read
                    mixed = mixed._replace(input_gradient_ND=mixed.input_gradient_ND + by_gates_ND)
            gradient_ND = mixed.input_gradient_ND
            yield mixed
        watch(what, self.layers, self.layers)

    def _states_of(self, x_TD: Tensor) -> list[Tensor]:
        states = [x_TD]
        with torch.no_grad():
            for layer in range(self.layers):
                states.append(self.layer(layer, states[-1], embedded_TD=x_TD))
        return states

    def _back(
        self, layer: int, x_ND: Tensor, gradient_ND: Tensor, embedded_ND: Tensor
    ) -> tuple[Mixed, Tensor | None]:
        """One layer forward and backward: gradients by what its heads mixed, by its input, and by what its
        gate reads if it has one."""
        recorded, record = _recorder(HookPoint.MIXED)
        with torch.enable_grad():
            x_ND, embedded_ND = (tensor.detach().clone().requires_grad_() for tensor in (x_ND, embedded_ND))
            y_ND = self.layer(layer, x_ND, record, embedded_ND)
            (o_NHK,) = recorded[HookPoint.MIXED]
            below_ND, gradient_NHK, of_gate_ND = torch.autograd.grad(
                y_ND, [x_ND, o_NHK, embedded_ND], gradient_ND, allow_unused=True
            )
        return Mixed(layer, o_NHK.detach(), gradient_NHK, below_ND), of_gate_ND


def _recorder(*places: HookPoint) -> tuple[dict[HookPoint, list[Tensor]], Hook]:
    """A hook and the tensors that it has recorded at some places."""
    recorded: dict[HookPoint, list[Tensor]] = {place: [] for place in places}

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place in recorded:
            recorded[place].append(tensor)

    return recorded, record


def _gradient(score: TargetScore, x_ND: Tensor, scale: Scale) -> Tensor:
    """Of the score by the states that its head reads."""
    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        (gradient_ND,) = torch.autograd.grad(score.values(x_ND, scale).sum(), [x_ND])
    return gradient_ND


def _through_decoder(score: TargetScore, x_ND: Tensor, scale: Scale, layer: int) -> tuple[Mixed, Tensor]:
    """The passes of the decoder, and the gradient by the states before the last layer."""
    recorded, record = _recorder(HookPoint.QUERY, HookPoint.MIXED)
    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        number = score.values(x_ND, scale, record).sum()
        gradient_ND, *of_passes = torch.autograd.grad(number, [x_ND, *recorded[HookPoint.MIXED]])
    q_NHK, o_NHK = (torch.cat(recorded[place]).detach() for place in (HookPoint.QUERY, HookPoint.MIXED))
    return Mixed(layer, o_NHK, torch.cat(of_passes), gradient_ND, q_NHK), gradient_ND


def _finite(values: Tensor, unit: str) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteResult(f"the {unit} is not finite; try dtype='float32'")
    return values


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
