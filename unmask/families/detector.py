"""Replaced-token detection head (Clark et al. 2020) for families whose own classes have none.

It is stored under ELECTRA's names (``discriminator_predictions``), in a class that `transformers` does not
have, such as ``BertForReplacedTokenDetection``; `transformers` loads the encoder of such a checkpoint and
ignores the head.
"""

from unmask.families.common import activation_of
from unmask.families.heads import CheckpointInfo, HeadLayout
from unmask.spec import Classifier, Transform
from unmask.spec.tensor_map import Rename, Same, TensorRule

CLASS = "ForReplacedTokenDetection"
"""The suffix of the class name."""

OUT = "discriminator_predictions.dense_prediction"


def _make(info: CheckpointInfo, count: int) -> Classifier:
    """A dense layer with the layers' activation, then one number for each token."""
    transform = Transform(info.encoder.width, activation_of(info.encoder))
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
    """Whether a family already has names for such a head; a native checkpoint needs none."""
    return any(isinstance(row, Same) for row in encoder_rows) or any(
        "replaced" in head.roles for head in heads
    )
