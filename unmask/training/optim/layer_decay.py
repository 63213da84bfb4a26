"""How far below the top of its encoder each parameter is, for layer-wise decay of learning rates."""

from torch import nn

from unmask.encoder.encoder import Encoder


def levels_below_top(module: nn.Module) -> dict[nn.Parameter, int]:
    """The level of every parameter of an encoder's layers and embeddings; all others are at level 0.

    The top layer is at level 1, the lowest of n layers at level n, and embeddings at level n + 1, with the
    table of distances that all layers read. A convolution belongs to the lowest layer, whose output it is
    added to. Weights of several layers, or of several encoders, have the level of the highest.
    """
    found: dict[nn.Parameter, int] = {}
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
                found[parameter] = min(level, found.get(parameter, level))
    return found
