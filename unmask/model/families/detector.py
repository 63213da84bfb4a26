"""A head for replaced tokens (Clark et al. 2020) for families whose own classes have none.

It is kept under ELECTRA's names (``discriminator_predictions``), in a class that `transformers` has not,
such as ``BertForReplacedTokenDetection``; `transformers` reads the encoder of such a checkpoint and leaves
the head out.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unmask.model.spec import Classifier, EncoderSpec, Transform, role_of
from unmask.model.spec.rows import Rename, Row, Same
from unmask.settings import Settings

CLASS = "ForReplacedTokenDetection"
"""How the name of the class ends."""

OUT = "discriminator_predictions.dense_prediction"

ROWS = (
    Rename("discriminator_predictions.dense", "heads.replaced.transform.dense"),
    Rename(OUT, "heads.replaced.out"),
)

Shapes = Mapping[str, tuple[int, ...]]
Adapt = Callable[[EncoderSpec, Shapes, Settings], EncoderSpec]
Write = Callable[[EncoderSpec], Mapping[str, Any]]


def has_none(rows: tuple[Row, ...]) -> bool:
    """Whether a family's tensors have no names for such a head."""
    return not any(
        isinstance(row, Same) or (isinstance(row, Rename) and row.ours.startswith("heads.replaced."))
        for row in rows
    )


def adapting(adapt: Adapt) -> Adapt:
    """`Family.adapt` that also sees this head: a dense layer, the layers' activation, a number a token."""

    def adapted(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
        made = adapt(encoder, shapes, config)
        found = shapes.get(f"{OUT}.weight")
        if found is None:
            return made
        transform = Transform(made.width, made.layers[0].feedforward.activation)
        return replace(made, heads=(*made.heads, Classifier("replaced", found[0], "tokens", transform)))

    return adapted


def writing(write: Write) -> Write:
    """`Family.write` that also names the class with this head."""

    def written(encoder: EncoderSpec) -> Mapping[str, Any]:
        others = tuple(head for head in encoder.heads if role_of(head) != "replaced")
        if len(others) == len(encoder.heads):
            return write(encoder)
        keys = write(replace(encoder, heads=others))
        (name,) = write(replace(encoder, heads=()))["architectures"]
        return {**keys, "architectures": [name.removesuffix("Model") + CLASS]}

    return written
