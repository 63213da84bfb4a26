"""The same number of parameters for every design, by the width of its feed-forward networks."""

from dataclasses import replace

from unmask.errors import InvalidRequest
from unmask.model.spec import EncoderSpec
from unmask.model.weights.build import on_meta

TOLERANCE = 0.01
"""How far a design's parameters may be from the budget, as a share of it."""
MULTIPLE = 8


def body_parameters(spec: EncoderSpec) -> int:
    """Trained numbers of the embedding and everything up to the last hidden state; shared ones count once.

    Heads are left out: an objective that needs another head than the masked one would have another budget.
    """
    named = on_meta(spec).named_parameters()
    return sum(parameter.numel() for name, parameter in named if not name.startswith("heads."))


def with_feedforward(spec: EncoderSpec, width: int) -> EncoderSpec:
    """The encoder with feed-forward networks of that width in every layer."""
    layers = (replace(layer, feedforward=replace(layer.feedforward, width=width)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def fitted(spec: EncoderSpec, parameters: int) -> EncoderSpec:
    """The encoder with the feed-forward width that brings `body_parameters` closest to ``parameters``.

    The number of parameters is a straight line in that width, so two points of it decide. The width is a
    multiple of `MULTIPLE` where one is close enough, since products of odd widths are slower.

    Raises:
        InvalidRequest: no width comes within `TOLERANCE` of it.
    """
    one, two = (body_parameters(with_feedforward(spec, width)) for width in (1, 2))
    exact = (parameters - one) / (two - one) + 1
    for multiple in (MULTIPLE, 1):
        width = max(1, round(exact / multiple) * multiple)
        found = one + (width - 1) * (two - one)
        if abs(found - parameters) <= TOLERANCE * parameters:
            return with_feedforward(spec, width)
    raise InvalidRequest(
        f"with feed-forward networks of width {width} a design has {found:,} parameters, and "
        f"{parameters:,} are wanted to within {TOLERANCE:.0%}; make the reference's feed-forward wider"
    )
