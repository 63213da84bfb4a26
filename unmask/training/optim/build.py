"""An optimizer for a module from its spec, parameter groups, and gradient clipping.

Groups say which parameters decay, which are matrices updated by Muon, and by how much learning rates decrease
from layer to layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import DoubleTransformLayer, PoolerLayer, ResidualTransformLayer, TransformLayer
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.global_attention import GlobalAttention
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.parts import GatedNetwork
from unmask.errors import InvalidRequest
from unmask.training.optim.spec import OptimizerSpec
from unmask.training.optim.updates import (
    MomentStep,
    adamw,
    full_tensors,
    is_dtensor,
    lamb,
    local_tensors,
    muon,
    stable_adamw,
)

HIDDEN = (Block, TransformLayer, DoubleTransformLayer, ResidualTransformLayer, PoolerLayer)
"""Modules whose linear layers map hidden states to hidden states; excludes embeddings and output layers."""


def _stacked_in(mixer: SoftmaxMixer) -> int:
    """Queries, keys and values; where heads share keys, queries are several matrices of the keys' size."""
    queries, keys, values = mixer.spec.qkv_heads
    return (queries + keys + values) // keys


STACKED: tuple[tuple[type[nn.Module], str, int | Callable[[Any], int]], ...] = (
    (SoftmaxMixer, "qkv", _stacked_in),
    (LinearMixer, "qkv", 3),
    (GlobalAttention, "qkv", 3),
    (GatedNetwork, "inner", 2),
)
"""Linear layers that stack several matrices of equal size: module, name, number of matrices."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A parameter and how it is updated."""

    name: str
    parameter: nn.Parameter
    decays: bool
    """True for weights with two or more axes, including embeddings; norms and biases have one."""
    parts: int
    """0 if not updated by Muon; else the number of matrices stacked along its first axis."""
    below: int = 0
    """0 for parameters above an encoder's layers, such as a head's; see `levels_below_top`."""


def place_parameters(module: nn.Module) -> list[Placed]:
    """Every trained parameter once, in the order of `nn.Module.named_parameters`.

    A parameter shared by two modules, such as a tied output, is updated by Muon only if it qualifies in both.

    Raises:
        InvalidRequest: no parameter requires a gradient.
    """
    places: dict[nn.Parameter, Placed] = {}
    levels = levels_below_top(module)
    for name, parameter, decays, parts in _walk(module, "", hidden=False, stacked={}):
        if not parameter.requires_grad:
            continue
        first = places.get(parameter, Placed(name, parameter, decays, parts, levels.get(parameter, 0)))
        places[parameter] = replace(first, decays=first.decays and decays, parts=min(first.parts, parts))
    if not places:
        raise InvalidRequest(
            "the module has no parameter that requires a gradient, so nothing can be trained"
        )
    return list(places.values())


def _walk(
    module: nn.Module, prefix: str, *, hidden: bool, stacked: dict[nn.Module, int]
) -> Iterator[tuple[str, nn.Parameter, bool, int]]:
    hidden = hidden or isinstance(module, HIDDEN)
    for kind, child, parts in STACKED:
        if isinstance(module, kind):
            count = parts if isinstance(parts, int) else parts(module)
            stacked = stacked | {getattr(module, child): count}
    for name, parameter in module.named_parameters(recurse=False):
        decays = parameter.ndim >= 2 and name != "bias"
        matrix = hidden and name == "weight" and isinstance(module, nn.Linear)
        yield prefix + name, parameter, decays, stacked.get(module, 1) if matrix else 0
    for name, child_module in module.named_children():
        yield from _walk(child_module, f"{prefix}{name}.", hidden=hidden, stacked=stacked)


def levels_below_top(module: nn.Module) -> dict[nn.Parameter, int]:
    """The level of every parameter of an encoder's layers and embeddings; all others are at level 0.

    The top layer is at level 1, the lowest of n layers at level n, and embeddings at level n + 1, with the
    table of distances that all layers read and what their gates read. A convolution belongs to the lowest
    layer, whose output it is added to. Weights of several layers, or of several encoders, have the level of
    the highest.
    """
    levels: dict[nn.Parameter, int] = {}
    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
        count = len(encoder.spec.layers)
        parts: list[tuple[nn.Module | None, int]] = [
            (encoder.embedding, count + 1),
            (encoder.distances, count + 1),
            (encoder.layer_inputs, count + 1),
            (encoder.convolution, count),
            *((encoder.block(layer), count - layer) for layer in range(count)),
        ]
        for part, level in parts:
            for parameter in () if part is None else part.parameters():
                levels[parameter] = min(level, levels.get(parameter, level))
    return levels


def build_optimizer(
    module: nn.Module, spec: OptimizerSpec, own_rates: Mapping[nn.Parameter, float] | None = None
) -> "Optimizer":
    """The optimizer that ``spec`` describes, for every parameter of ``module`` that requires a gradient.

    Args:
        module: holds the parameters.
        spec: the optimizer's settings.
        own_rates: the maximum learning rate of parameters that have another than ``spec`` gives.

    Raises:
        InvalidRequest: there is no such parameter, or none for ``layer_decay`` or ``head_learning_rate``.
    """
    rates = _head_rates(module, spec) | dict(own_rates or {})
    return Optimizer(place_parameters(module), spec, rates)


def _head_rates(module: nn.Module, spec: OptimizerSpec) -> dict[nn.Parameter, float]:
    """``head_learning_rate`` for all that is trained but an encoder's embeddings, layers, norm and pooler.

    An output layer that shares its weights with the embeddings has their rate.
    """
    rate = spec.head_learning_rate
    if rate is None:
        return {}
    body = {
        parameter
        for encoder in module.modules()
        if isinstance(encoder, Encoder)
        for part in encoder.children()
        if part is not encoder.heads
        for parameter in part.parameters()
    }
    heads = [value for value in module.parameters() if value.requires_grad and value not in body]
    if not heads:
        raise InvalidRequest(f"head_learning_rate is {rate:g}, and no head is trained; leave it out")
    return dict.fromkeys(heads, rate)


UPDATES = {"adamw": adamw, "stable_adamw": stable_adamw, "lamb": lamb}
"""The updates that have two moments."""


class Optimizer(torch.optim.Optimizer):
    """AdamW, StableAdamW or Muon over groups of parameters, each with its rate and decay.

    The state of a parameter is: ``step``, a float32 scalar on the host; ``first`` and ``second`` moments,
    or Muon's ``momentum``; and for a 16-bit parameter ``master``, the float32 value in which steps
    accumulate and of which the parameter is a rounded copy. Moments are float32 too (float64 for float64
    parameters).

    Loading a state restores these and the schedule's multiplier. Rates, decay and other numbers remain those
    of the spec this optimizer was built from, so a run can resume with different ones.

    Args:
        placed: parameters and how they are updated.
        spec: the optimizer's settings.
        own_rates: see `build_optimizer`.
    """

    def __init__(
        self,
        placed: Iterable[Placed],
        spec: OptimizerSpec,
        own_rates: Mapping[nn.Parameter, float] | None = None,
    ) -> None:
        self.spec = spec
        placed = list(placed)
        self._parts = {place.parameter: place.parts for place in placed}
        rates = own_rates or {}
        groups = list(_groups([place for place in placed if place.parameter not in rates], spec))
        groups += _own_groups([place for place in placed if place.parameter in rates], spec, rates)
        super().__init__(groups, {})

    def set_learning_rate(self, factor: float) -> None:
        """Set every group's learning rate to its maximum times ``factor``."""
        for group in self.param_groups:
            group["factor"] = factor
            group["lr"] = group["base_lr"] * factor

    def clip(self) -> float:
        """`clip_gradients` with the spec's limit: return the norm of all gradients before clipping; waits
        for the device."""
        return float(clip_gradients(self._parts, self.spec.clip))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; the others and their state are unchanged.

        Raises:
            InvalidRequest: a closure is given, or a gradient is sparse.
        """
        if closure is not None:
            raise InvalidRequest("the optimizer takes no closure; compute gradients first, then call step()")
        for group in self.param_groups:
            batches: dict[tuple[Any, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise InvalidRequest("a gradient is sparse; use embeddings with sparse=False")
                state = self._kept(parameter, group["kind"])
                state["step"] += 1
                key = (parameter.device, parameter.dtype, is_dtensor(parameter), int(state["step"]))
                batches.setdefault(key, []).append(parameter)
            for (*_, count), parameters in batches.items():
                self._move(parameters, group, count)

    def _kept(self, parameter: nn.Parameter, kind: str) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            dtype = _wide(parameter)
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _moments(kind):
                state[name] = torch.zeros_like(parameter, dtype=dtype)
            if parameter.dtype != dtype:
                state["master"] = parameter.detach().to(dtype)
        return state

    def _move(self, parameters: list[nn.Parameter], group: dict[str, Any], count: int) -> None:
        states = [self.state[parameter] for parameter in parameters]
        masters = [state["master"] for state in states if "master" in state]
        values: list[Tensor] = masters or [parameter.detach() for parameter in parameters]
        gradients = [
            _laid_out(parameter.grad, value) for parameter, value in zip(parameters, values, strict=True)
        ]
        rate = float(group["lr"])
        # The fraction of a weight that decay subtracts; the schedule's multiplier applies in both cases.
        decay = group["weight_decay"] * (rate / group["base_lr"] if group["decoupled"] else rate)
        if group["kind"] == "muon":
            muon(
                values,
                gradients,
                [state["momentum"] for state in states],
                [self._parts[parameter] for parameter in parameters],
                rate=rate,
                decay=decay,
                momentum=group["momentum"],
                nesterov=group["nesterov"],
                iterations=group["iterations"],
            )
        else:
            UPDATES[group["kind"]](
                values,
                gradients,
                [state["first"] for state in states],
                [state["second"] for state in states],
                MomentStep(count, rate, group["betas"], group["eps"], decay),
            )
        if masters:
            torch._foreach_copy_(local_tensors(parameters), local_tensors(masters))

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state; its tensors are copied.

        Raises:
            InvalidRequest: it belongs to other parameters or another kind of optimizer: groups, their sizes,
                shapes or state tensors differ. In this case nothing is loaded.
        """
        saved = state_dict["param_groups"]
        described = [(group["name"], len(group["params"])) for group in saved]
        expected = [(group["name"], len(group["params"])) for group in self.param_groups]
        if described != expected:
            raise InvalidRequest(
                f"the state has groups of parameters {described} and this optimizer {expected}; "
                "build it from the spec and the module of the run that saved it"
            )
        states: dict[Tensor, dict[str, Tensor]] = {}
        for group, theirs in zip(self.param_groups, saved, strict=True):
            for parameter, index in zip(group["params"], theirs["params"], strict=True):
                if index in state_dict["state"]:
                    states[parameter] = _copied(parameter, group["kind"], state_dict["state"][index])
        for group, theirs in zip(self.param_groups, saved, strict=True):
            group["factor"] = theirs["factor"]
            group["lr"] = group["base_lr"] * group["factor"]
        self.state.clear()
        self.state.update(states)


def _moments(kind: str) -> tuple[str, ...]:
    return ("momentum",) if kind == "muon" else ("first", "second")


def _wide(parameter: nn.Parameter) -> torch.dtype:
    """The dtype of moments and master weights."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _copied(parameter: nn.Parameter, kind: str, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of a state's tensors. A master is added or dropped if the parameter's dtype has changed."""
    names = {"step", *_moments(kind)}
    if stored.keys() - {"master"} != names:
        raise InvalidRequest(
            f"the state keeps {', '.join(sorted(stored))} for a parameter and {kind} keeps "
            f"{', '.join(sorted(names))}; load it into the kind of optimizer that saved it"
        )
    copied = {}
    for name, tensor in stored.items():
        if name == "step":
            copied[name] = tensor.detach().to("cpu", torch.float32, copy=True)
            continue
        if tensor.shape != parameter.shape:
            raise InvalidRequest(
                f"the state's {name} has shape {tuple(tensor.shape)} and its parameter "
                f"{tuple(parameter.shape)}; load the state of the same module"
            )
        copied[name] = tensor.detach().to(parameter.device, _wide(parameter), copy=True)
    if parameter.dtype == _wide(parameter):
        copied.pop("master", None)
    elif "master" not in copied:
        copied["master"] = parameter.detach().to(_wide(parameter))
    return copied


def _laid_out(gradient: Tensor | None, value: Tensor) -> Tensor:
    """A gradient in the dtype and the memory layout of its value."""
    assert gradient is not None
    if gradient.dtype == value.dtype and gradient.stride() == value.stride():
        return gradient
    return torch.empty_like(value).copy_(gradient)


def _groups(placed: list[Placed], spec: OptimizerSpec) -> Iterable[dict[str, Any]]:
    """The groups of a spec that have members, with layer-wise decay separately for each level, from the top.

    Raises:
        InvalidRequest: there is layer-wise decay and no parameter of an encoder's layers.
    """
    if spec.layer_decay is None:
        yield from _kinds(placed, spec)
        return
    levels = sorted({place.below for place in placed})
    if not any(levels):
        raise InvalidRequest(
            f"layer_decay is {spec.layer_decay:g} and no layer of an encoder is trained; leave layer_decay "
            "out, or train the encoder too"
        )
    for level in levels:
        factor = spec.rate_factor(level)
        for group in _kinds([place for place in placed if place.below == level], spec):
            rate = group["lr"] * factor
            yield {**group, "name": f"{group['name']}, level {level}", "lr": rate, "base_lr": rate}


def _own_groups(
    placed: list[Placed], spec: OptimizerSpec, rates: Mapping[nn.Parameter, float]
) -> Iterable[dict[str, Any]]:
    """The groups of parameters with rates of their own."""
    for number, rate in enumerate(sorted({rates[place.parameter] for place in placed})):
        for group in _kinds([place for place in placed if rates[place.parameter] == rate], spec):
            yield {**group, "name": f"{group['name']}, own rate {number}", "lr": rate, "base_lr": rate}


def _kinds(placed: list[Placed], spec: OptimizerSpec) -> Iterable[dict[str, Any]]:
    """The groups with members at the full rate: ``muon``, ``decayed``, ``plain``, in this order."""
    with_muon = spec.kind == "muon"
    kind = spec.rest if spec.kind == "muon" else spec.kind
    moments = {"betas": spec.betas, "eps": spec.eps}
    muon_rate = spec.learning_rate if spec.muon_learning_rate is None else spec.muon_learning_rate
    muon_decay = spec.weight_decay if spec.muon_weight_decay is None else spec.muon_weight_decay
    turning = {
        "momentum": spec.muon_momentum,
        "nesterov": spec.muon_nesterov,
        "iterations": spec.muon_iterations,
    }
    matrices = [place for place in placed if with_muon and place.parts]
    others = [place for place in placed if not (with_muon and place.parts)]
    decayed, plain = ([place for place in others if place.decays is decays] for decays in (True, False))
    for name, members, how, rate, decay, own_rate in (
        ("muon", matrices, "muon", muon_rate, muon_decay, turning),
        ("decayed", decayed, kind, spec.learning_rate, spec.weight_decay, moments),
        # Norms and biases have no step by their norm, as in the authors' code.
        ("plain", plain, "adamw" if kind == "lamb" else kind, spec.learning_rate, 0.0, moments),
    ):
        if members:
            yield {
                "params": [member.parameter for member in members],
                "name": name,
                "kind": how,
                "lr": rate,
                "base_lr": rate,
                "factor": 1.0,
                "weight_decay": decay,
                "decoupled": spec.decoupled,
                **own_rate,
            }


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Scale all gradients by one factor, so that their Euclidean norm is at most ``limit``.

    Args:
        parameters: those without a gradient are skipped.
        limit: None only measures the norm.

    Returns:
        The norm before clipping: a scalar on the gradients' device, float64 for float64 gradients and
        otherwise float32; 0 without gradients. If it is infinite or NaN, gradients are not changed, and the
        caller decides whether to take the step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    # A sum of squares in 16 bits would lose most of its digits.
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm(gradients, 2, dtype=wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack([full_tensors(norm) for norm in norms]))
    # On a CPU the host can tell, and a product of all gradients with 1 is left out.
    if limit is not None and not (total.device.type == "cpu" and total <= limit):
        shorter = (limit / total).clamp(max=1.0)
        # Decided on the device, which avoids a synchronization.
        torch._foreach_mul_(gradients, torch.where(torch.isfinite(total), shorter, 1.0))
    return total
