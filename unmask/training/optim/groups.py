"""Parameter groups: which parameters decay, which are matrices updated by Muon, and layer-wise decay."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import PoolerLayer
from unmask.encoder.heads.prediction_heads import ResidualTransformLayer, TransformLayer
from unmask.encoder.layers import Block
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.global_attention import GlobalAttention
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.parts import GatedNetwork
from unmask.errors import InvalidRequest

HIDDEN = (Block, TransformLayer, ResidualTransformLayer, PoolerLayer)
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
        decays = parameter.ndim >= 2
        matrix = hidden and name == "weight" and isinstance(module, nn.Linear)
        yield prefix + name, parameter, decays, stacked.get(module, 1) if matrix else 0
    for name, child_module in module.named_children():
        yield from _walk(child_module, f"{prefix}{name}.", hidden=hidden, stacked=stacked)


def levels_below_top(module: nn.Module) -> dict[nn.Parameter, int]:
    """The level of every parameter of an encoder's layers and embeddings; all others are at level 0.

    The top layer is at level 1, the lowest of n layers at level n, and embeddings at level n + 1, with the
    table of distances that all layers read. A convolution belongs to the lowest layer, whose output it is
    added to. Weights of several layers, or of several encoders, have the level of the highest.
    """
    levels: dict[nn.Parameter, int] = {}
    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
        count = len(encoder.spec.layers)
        parts: list[tuple[nn.Module | None, int]] = [
            (encoder.embedding, count + 1),
            (encoder.distances, count + 1),
            (encoder.convolution, count),
            *((encoder.block(layer), count - layer) for layer in range(count)),
        ]
        for part, level in parts:
            for parameter in () if part is None else part.parameters():
                levels[parameter] = min(level, levels.get(parameter, level))
    return levels
