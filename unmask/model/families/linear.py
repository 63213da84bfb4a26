"""Linear attention (Katharopoulos, Vyas, Pappas & Fleuret 2020) in BERT's layers, in a format of our own.

No encoder of this kind has a published checkpoint in common use, so the folder is `unmask`'s: BERT's keys of
config.json and names of tensors, and the few keys that say how features are made. Not in `transformers`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.model.families.bert import ROWS, adapt
from unmask.model.families.bert import read as read_as_bert
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.bert import write as write_as_bert
from unmask.model.families.family import Compat, Family, architectures
from unmask.model.spec import EncoderSpec, LinearAttention, SoftmaxAttention
from unmask.settings import Settings

EPS = 1e-6
"""What the authors' code adds to the denominator."""


def with_mixer(encoder: EncoderSpec, mixer: LinearAttention) -> EncoderSpec:
    """A BERT whose every layer mixes by ``mixer``."""
    return replace(encoder, layers=tuple(replace(layer, mixer=mixer) for layer in encoder.layers))


def mixer_of(encoder: EncoderSpec) -> LinearAttention:
    """The mixer of an encoder whose layers all have the same linear one."""
    mixer = encoder.layers[0].mixer
    assert isinstance(mixer, LinearAttention)
    return mixer


def read_bert(config: Settings, compat: Compat) -> tuple[EncoderSpec, int, int]:
    """The spec as if it were a BERT's, its heads and their width. There are no probabilities to drop."""
    config.require("attention_probs_dropout_prob", 0.0)
    encoder = read_as_bert(config, compat)
    mixer = encoder.layers[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return encoder, mixer.heads, mixer.head_width


def write_bert(encoder: EncoderSpec, stem: str) -> Mapping[str, Any]:
    """The keys that are BERT's, and the class's name, which says what a classifier decides."""
    mixer = mixer_of(encoder)
    softmax = SoftmaxAttention(mixer.heads, mixer.head_width)
    as_bert = replace(encoder, layers=tuple(replace(layer, mixer=softmax) for layer in encoder.layers))
    return {**write_as_bert(as_bert), "architectures": architectures(stem, encoder)}


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    eps: float = EPS,
    **others: Any,
) -> EncoderSpec:
    """An encoder of the given sizes; ``others`` are those of a BERT."""
    encoder = bert_spec(layers=layers, width=width, heads=heads, feedforward=feedforward, **others)
    return with_mixer(encoder, LinearAttention(heads, width // heads, "elu+1", eps=eps))


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("feature_map", "elu+1")
    encoder, heads, head_width = read_bert(config, compat)
    eps = config.take("feature_eps", EPS)
    return with_mixer(encoder, LinearAttention(heads, head_width, "elu+1", eps=eps))


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    mixer = mixer_of(encoder)
    return {
        **write_bert(encoder, "UnmaskLinear"),
        "feature_eps": mixer.eps,
        "feature_map": mixer.feature_map,
        "model_type": "unmask-linear",
    }


LINEAR = Family(
    name="linear",
    model_types=("unmask-linear",),
    paper="Katharopoulos et al. 2020",
    read=read,
    adapt=adapt,
    write=write,
    prefix="bert.",
    rows=ROWS,
    published=(),
)
