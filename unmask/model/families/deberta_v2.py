"""DeBERTa v2, v3 and mDeBERTa (He, Gao & Chen 2023): the first version with merged distances.

Distances beyond half of ``position_buckets`` are merged on a logarithmic scale, their table is normalised
and goes through each layer's own query and key projections. The larger sizes of v2 add a convolution after
layer 0. v3's head for replaced tokens (``mask_predictions``) reads each token's state and the first's.

Beyond the distances of the training `transformers` differs: it merges them as they are, so a key 512
tokens or more after its query reads the table's row 0, which no text of the training reached. The authors'
code cuts distances to ±511 first. ``compat="hf"`` does as `transformers` does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.deberta import (
    ACTIVATIONS,
    SHARED_ROWS,
    adapt,
    distances,
    name_of,
    pretraining,
    settings,
    sizes,
)
from unmask.model.families.deberta import spec as first_spec
from unmask.model.families.family import Family, Published, architectures
from unmask.model.spec import (
    Convolution,
    Disentangled,
    EncoderSpec,
    LayerNorm,
    SoftmaxAttention,
)
from unmask.model.spec.compat import Compat
from unmask.model.spec.rows import Concat, Rename
from unmask.settings import Settings

PUBLISHED = Disentangled(
    512, buckets=256, shared_projections=True, table_norm=LayerNorm(1e-7), table_dropout=0.1, clamped=True
)
"""Positions of every published checkpoint."""


def spec(
    *,
    convolution: Convolution | None = None,
    head_width: int | None = None,
    **first: Any,
) -> EncoderSpec:
    """A DeBERTa v2 or v3 of the given sizes; ``first`` are arguments of the first version's `spec`.

    ``head_width`` is None where heads divide the width among them.
    """
    arguments: dict[str, Any] = {"position": PUBLISHED, "vocabulary": 128100} | first
    made = first_spec(**arguments)
    layer = made.layers[0]
    assert isinstance(layer.mixer, SoftmaxAttention)
    mixer = replace(layer.mixer, head_width=head_width or layer.mixer.head_width, key_bias=True)
    return replace(made, layers=(replace(layer, mixer=mixer),) * len(made.layers), convolution=convolution)


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    shared = sizes(config)
    buckets = max(0, config.take("position_buckets", -1))
    norms = {name.strip() for name in config.take("norm_rel_ebd", "none").lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise UnknownArchitecture(
            f"{config.name} says norm_rel_ebd is {config.values['norm_rel_ebd']!r}; "
            "built are none and layer_norm"
        )
    return spec(
        **shared,
        layers=config.take("num_hidden_layers", 24),
        width=config.take("hidden_size", 1536),
        heads=config.take("num_attention_heads", 24),
        feedforward=config.take("intermediate_size", 6144),
        vocabulary=config.take("vocab_size", 128100),
        head_width=config.maybe("attention_head_size", int),
        position=distances(
            config,
            buckets=buckets,
            shared_projections=config.take("share_att_key", False),
            table_norm=LayerNorm(shared["eps"]) if "layer_norm" in norms else None,
            clamped=compat == "published" and buckets > 0,
        ),
        convolution=_convolution(config, shared),
    )


def _convolution(config: Settings, shared: Mapping[str, Any]) -> Convolution | None:
    kernel, groups = config.take("conv_kernel_size", 0), config.take("conv_groups", 1)
    config.require("conv_act", "tanh", *ACTIVATIONS)
    if kernel <= 0:
        return None
    activation = ACTIVATIONS[config.take("conv_act", "tanh")]
    return Convolution(kernel, LayerNorm(shared["eps"]), activation, groups, shared["dropout"])


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    mixer, convolution = encoder.layers[0].mixer, encoder.convolution
    assert isinstance(mixer, SoftmaxAttention)
    written = {
        "architectures": architectures("DebertaV2", encoder),
        "attention_head_size": mixer.head_width,
        "model_type": "deberta-v2",
        **settings(encoder),
    }
    if isinstance(mixer.position, Disentangled):
        written |= {
            "norm_rel_ebd": "layer_norm" if mixer.position.table_norm else "none",
            "position_buckets": mixer.position.buckets or -1,
            "share_att_key": mixer.position.shared_projections,
        }
    if convolution is not None:
        written |= {
            "conv_act": name_of(convolution.activation),
            "conv_groups": convolution.groups,
            "conv_kernel_size": convolution.kernel,
        }
    return written


_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    *SHARED_ROWS,
    Rename("encoder.LayerNorm", "distances.norm"),
    Rename("encoder.conv.conv", "convolution.inner"),
    Rename("encoder.conv.LayerNorm", "convolution.norm"),
    Concat((_SELF + "query_proj", _SELF + "key_proj", _SELF + "value_proj"), "layers.{l}.attention.qkv"),
    Rename(_SELF + "pos_key_proj", "layers.{l}.attention.distances.key"),
    Rename(_SELF + "pos_query_proj", "layers.{l}.attention.distances.query"),
)

_V2 = "He et al. 2021"
_V3 = "He, Gao & Chen 2023"

_CONVOLUTION = Convolution(3, LayerNorm(1e-7), "gelu", dropout=0.1)


def _published(name: str, paper: str, **sizes: Any) -> Published:
    encoder = spec(**sizes)
    return Published(name, encoder, "MIT", paper, pretraining(encoder))


DEBERTA_V2 = Family(
    name="deberta_v2",
    model_types=("deberta-v2",),
    paper=_V3,
    read=read,
    adapt=adapt,
    write=write,
    prefix="deberta.",
    rows=ROWS,
    published=(
        _published(
            "microsoft/deberta-v2-xlarge",
            _V2,
            layers=24,
            width=1536,
            heads=24,
            feedforward=6144,
            convolution=_CONVOLUTION,
        ),
        _published(
            "microsoft/deberta-v2-xxlarge",
            _V2,
            layers=48,
            width=1536,
            heads=24,
            feedforward=6144,
            convolution=_CONVOLUTION,
        ),
        _published("microsoft/deberta-v3-xsmall", _V3, layers=12, width=384, heads=6, feedforward=1536),
        _published("microsoft/deberta-v3-small", _V3, layers=6, width=768, heads=12, feedforward=3072),
        _published("microsoft/deberta-v3-base", _V3, layers=12, width=768, heads=12, feedforward=3072),
        _published("microsoft/deberta-v3-large", _V3, layers=24, width=1024, heads=16, feedforward=4096),
        _published(
            "microsoft/mdeberta-v3-base",
            _V3,
            layers=12,
            width=768,
            heads=12,
            feedforward=3072,
            vocabulary=251000,
        ),
    ),
    differs="distances beyond those of the training are merged as they are, not cut first",
    beside=("heads.", "pooler."),
)
