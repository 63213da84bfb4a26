"""Match every variant's parameter count by adjusting its feed-forward width."""

from dataclasses import replace

from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec
from unmask.weights.build import on_meta

TOLERANCE = 0.01
"""Largest relative difference between a variant's parameter count and the budget."""
MULTIPLE = 8


def body_parameters(spec: EncoderSpec) -> int:
    """Trainable parameters of the embedding and of all layers; shared parameters count once.

    Heads are excluded, because an objective with a different head would otherwise have a different budget.
    """
    named = on_meta(spec).named_parameters()
    return sum(parameter.numel() for name, parameter in named if not name.startswith("heads."))


def with_feedforward(spec: EncoderSpec, width: int) -> EncoderSpec:
    """Return the encoder with feed-forward networks of this width in every layer."""
    layers = (replace(layer, feedforward=replace(layer.feedforward, width=width)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def fitted(spec: EncoderSpec, parameters: int) -> EncoderSpec:
    """Return the encoder with the feed-forward width that brings `body_parameters` closest to ``parameters``.

    The parameter count is linear in the width, so two evaluations determine it. The width is a
    multiple of `MULTIPLE` where one is close enough, because matrix products of odd widths are slower.

    Raises:
        InvalidRequest: no width comes within `TOLERANCE` of ``parameters``.
    """
    one, two = (body_parameters(with_feedforward(spec, width)) for width in (1, 2))
    exact = (parameters - one) / (two - one) + 1
    for multiple in (MULTIPLE, 1):
        width = max(1, round(exact / multiple) * multiple)
        found = one + (width - 1) * (two - one)
        if abs(found - parameters) <= TOLERANCE * parameters:
            return with_feedforward(spec, width)
    raise InvalidRequest(
        f"with feed-forward networks of width {width} a variant has {found:,} parameters, and "
        f"{parameters:,} are required to within {TOLERANCE:.0%}; make the reference's feed-forward wider"
    )
