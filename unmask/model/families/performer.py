"""Performer (Choromanski et al. 2021): FAVOR+ attention in BERT's layers, in a format of our own.

As for linear attention, the folder is `unmask`'s: BERT's keys and names, the number of random features, and
each layer's random matrix beside its weights. Not in `transformers`.
"""

import math
from collections.abc import Mapping
from typing import Any

from unmask.model.families.bert import ROWS as BERT_ROWS
from unmask.model.families.bert import adapt
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.family import Compat, Family
from unmask.model.families.linear import mixer_of, read_bert, with_mixer, write_bert
from unmask.model.spec import EncoderSpec, LinearAttention
from unmask.model.spec.rows import Rename
from unmask.settings import Settings

EPS = 1e-4
"""What the authors' code adds to every feature."""


def features_for(head_width: int) -> int:
    """How many random features a head of this width gets where nothing says: K ln K, as theorem 4 asks."""
    return max(1, int(head_width * math.log(head_width)))


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    random_features: int | None = None,
    eps: float = EPS,
    **others: Any,
) -> EncoderSpec:
    """An encoder of the given sizes; ``others`` are those of a BERT."""
    encoder = bert_spec(layers=layers, width=width, heads=heads, feedforward=feedforward, **others)
    head_width = width // heads
    features = features_for(head_width) if random_features is None else random_features
    return with_mixer(encoder, LinearAttention(heads, head_width, "favor+", features, eps))


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("feature_map", "favor+")
    encoder, heads, head_width = read_bert(config, compat)
    features = config.take("num_random_features", features_for(head_width))
    eps = config.take("feature_eps", EPS)
    return with_mixer(encoder, LinearAttention(heads, head_width, "favor+", features, eps))


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    mixer = mixer_of(encoder)
    return {
        **write_bert(encoder, "UnmaskPerformer"),
        "feature_eps": mixer.eps,
        "feature_map": mixer.feature_map,
        "model_type": "unmask-performer",
        "num_random_features": mixer.random_features,
    }


ROWS = (
    *BERT_ROWS,
    Rename("encoder.layer.{l}.attention.self.random_features", "layers.{l}.attention.projection"),
)

PERFORMER = Family(
    name="performer",
    model_types=("unmask-performer",),
    paper="Choromanski et al. 2021",
    read=read,
    adapt=adapt,
    write=write,
    prefix="bert.",
    rows=ROWS,
    published=(),
)
