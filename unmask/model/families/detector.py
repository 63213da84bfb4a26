"""A head for replaced tokens (Clark et al. 2020) for families whose own classes have none.

It is kept under ELECTRA's names (``discriminator_predictions``), in a class that `transformers` has not,
such as ``BertForReplacedTokenDetection``; `transformers` reads the encoder of such a checkpoint and leaves
the head out.
"""

from unmask.model.families.common import activation_of
from unmask.model.families.heads import Found, HeadLayout
from unmask.model.spec import Classifier, Transform
from unmask.model.spec.tensor_map import Rename, Same, TensorRule

CLASS = "ForReplacedTokenDetection"
"""How the name of the class ends."""

OUT = "discriminator_predictions.dense_prediction"


def _make(found: Found, count: int) -> Classifier:
    """A dense layer with the layers' activation, then one number for each token."""
    transform = Transform(found.encoder.width, activation_of(found.encoder))
    return Classifier("replaced", count, "tokens", transform)


DETECTOR = HeadLayout(
    f"{OUT}.weight",
    ("replaced",),
    _make,
    (
        Rename("discriminator_predictions.dense", "heads.replaced.transform.dense"),
        Rename(OUT, "heads.replaced.out"),
    ),
)


def has_detector(encoder_rows: tuple[TensorRule, ...], heads: tuple[HeadLayout, ...]) -> bool:
    """Whether a family has names of its own for such a head; tensors of a native checkpoint need none."""
    return any(isinstance(row, Same) for row in encoder_rows) or any(
        "replaced" in head.roles for head in heads
    )
