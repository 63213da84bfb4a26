"""Performer (Choromanski et al. 2021): FAVOR+ attention in BERT's layers, in unmask's own format.

As for linear attention, the format is `unmask`'s: BERT's keys and names, the number of random features, and
each layer's random matrix stored with its weights. Not in `transformers`.
"""

import math
from typing import Any

from unmask.families.bert import HEADS
from unmask.families.bert import ROWS as BERT_ROWS
from unmask.families.common import head_width_of
from unmask.families.family import Family
from unmask.families.linear import BERT_KEYS_WITHOUT_DROPOUT, FEATURE_EPS, mixer_of, with_mixer
from unmask.spec import EncoderSpec, LinearAttention
from unmask.spec.check import require_size
from unmask.spec.config_keys import Field, Key, only
from unmask.spec.tensor_map import Rename

KEYS = (
    *BERT_KEYS_WITHOUT_DROPOUT,
    only("feature_map", "favor+", written=True),
    Key(
        "num_random_features",
        "random_features",
        field=Field(lambda encoder: mixer_of(encoder).random_features, require_size),
    ),
    # The epsilon that the authors' code adds to every feature.
    Key("feature_eps", "eps_of_features", 1e-4, field=FEATURE_EPS),
)

ROWS = (
    *BERT_ROWS,
    Rename("encoder.layer.{l}.attention.self.random_features", "layers.{l}.attention.projection"),
)


def features_for(head_width: int) -> int:
    """The default number of random features for a head of this width: K ln K, as in theorem 4."""
    return max(1, int(head_width * math.log(head_width)))


def spec(
    *, heads: int, width: int, random_features: int | None, eps_of_features: float, **bert: Any
) -> EncoderSpec:
    """An encoder of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    head_width = head_width_of(width, heads)
    features = features_for(head_width) if random_features is None else random_features
    mixer = LinearAttention(heads, head_width, "favor+", features, eps_of_features)
    return with_mixer(heads, mixer, width=width, **bert)


PERFORMER = Family(
    name="performer",
    model_types=("unmask-performer",),
    stem="UnmaskPerformer",
    paper="Choromanski et al. 2021",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
)
