"""Linear attention (Katharopoulos, Vyas, Pappas & Fleuret 2020) in BERT's layers, in unmask's own format.

No encoder of this kind has a widely used published checkpoint, so the format is `unmask`'s: BERT's
config.json keys and tensor names, plus a few keys for the feature map. Not in `transformers`.
"""

from dataclasses import replace
from typing import Any

from unmask.families.bert import HEADS, ROWS
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import head_width_of
from unmask.families.family import Family
from unmask.spec import EncoderSpec, LinearAttention
from unmask.spec.check import require_deviation
from unmask.spec.config_keys import Field, Key, changed, only


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
