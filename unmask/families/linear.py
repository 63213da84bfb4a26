"""Linear attention in BERT's layers, in unmask's own format.

Its features are elu + 1 (Katharopoulos, Vyas, Pappas & Fleuret 2020), or random: FAVOR+ of Performer
(Choromanski et al. 2021). No encoder of either kind has a widely used published checkpoint, so the format is
`unmask`'s: BERT's config.json keys and tensor names, plus a few keys for the feature map. Performer's has the
number of random features, and each layer's random matrix with its weights. Not in `transformers`.
"""

import math
from dataclasses import replace
from typing import Any

from unmask.families.bert import HEADS, ROWS
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import head_width_of
from unmask.families.family import Family
from unmask.spec import EncoderSpec, LinearAttention
from unmask.spec.check import require_deviation, require_size
from unmask.spec.config_keys import Field, Key, changed, only
from unmask.spec.tensor_map import Rename


def mixer_of(encoder: EncoderSpec) -> LinearAttention:
    """The mixer of an encoder whose layers all have the same linear attention."""
    mixer = encoder.layers[0].mixer
    assert isinstance(mixer, LinearAttention)
    return mixer


FEATURE_EPS = Field(lambda encoder: mixer_of(encoder).eps, require_deviation)

BERT_KEYS_WITHOUT_DROPOUT = (
    # There are no probabilities to drop.
    only("attention_probs_dropout_prob", 0.0, written=True),
    *changed(BERT_KEYS, attention_probs_dropout_prob=...),
)

KEYS = (
    *BERT_KEYS_WITHOUT_DROPOUT,
    only("feature_map", "elu+1", written=True),
    # The epsilon that the authors' code adds to the denominator.
    Key("feature_eps", "eps_of_features", 1e-6, field=FEATURE_EPS),
)


def with_mixer(heads: int, mixer: LinearAttention, **bert: Any) -> EncoderSpec:
    """A BERT in which every layer uses ``mixer``; ``bert`` are other arguments of its `spec`."""
    encoder = bert_spec(heads=heads, attention_dropout=0.0, **bert)
    return replace(encoder, layers=tuple(replace(layer, mixer=mixer) for layer in encoder.layers))


def spec(*, heads: int, width: int, eps_of_features: float, **bert: Any) -> EncoderSpec:
    """An encoder of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    mixer = LinearAttention(heads, head_width_of(width, heads), "elu+1", eps=eps_of_features)
    return with_mixer(heads, mixer, width=width, **bert)


LINEAR = Family(
    name="linear",
    model_types=("unmask-linear",),
    stem="UnmaskLinear",
    paper="Katharopoulos et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
)


PERFORMER_KEYS = (
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

PERFORMER_ROWS = (
    *ROWS,
    Rename("encoder.layer.{l}.attention.self.random_features", "layers.{l}.attention.projection"),
)


def features_for(head_width: int) -> int:
    """The default number of random features for a head of this width: K ln K, as in theorem 4."""
    return max(1, int(head_width * math.log(head_width)))


def performer_spec(
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
    keys=PERFORMER_KEYS,
    encoder_rows=PERFORMER_ROWS,
    spec=performer_spec,
    prefix="bert.",
    heads=HEADS,
)
