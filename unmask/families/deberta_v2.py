"""DeBERTa v2, v3 and mDeBERTa (He, Gao & Chen 2023): the first version with merged distances.

Distances beyond half of ``position_buckets`` are merged on a logarithmic scale. Their table is normalized
and uses each layer's content query and key projections. The larger sizes of v2 add a convolution after
layer 0. v3's replaced-token detection head (``mask_predictions``) reads each token's state and the first's.

`transformers` differs for distances longer than any in training: it merges them unclamped, so a key 512
tokens or more after its query reads the table's row 0, which no training text used. The authors' code clamps
distances to ±511 first. ``compat="hf"`` reproduces `transformers`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture, quoted
from unmask.families.common import LARGE
from unmask.families.deberta import (
    ACTIVATIONS,
    DISENTANGLED,
    SHARED_KEYS,
    SHARED_ROWS,
    distances,
    parts,
    write_distances,
)
from unmask.families.deberta import HEADS as FIRST_HEADS
from unmask.families.deberta import spec as first_spec
from unmask.families.family import CLASSES, Family, Release
from unmask.families.heads import CHOICE, PRUNED_CLASS
from unmask.spec import Convolution, Disentangled, EncoderSpec, LayerNorm
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, changed, name_of, softmax_of
from unmask.spec.tensor_map import Concat, Ignore, Rename


def _read_distances(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    buckets = max(0, config.get("position_buckets", -1))
    norms = {name.strip() for name in config.get("norm_rel_ebd", "none").lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise UnknownArchitecture(
            f"{config.name} says norm_rel_ebd is {quoted(config.values['norm_rel_ebd'])}; "
            "built are none and layer_norm"
        )
    position = distances(
        config,
        arguments,
        buckets=buckets,
        shared_projections=config.get("share_att_key", False),
        table_norm=LayerNorm(arguments["eps"]) if "layer_norm" in norms else None,
        clamped=compat == "published" and buckets > 0,
    )
    return {"position": position}


def _write_distances(encoder: EncoderSpec) -> Mapping[str, Any]:
    position, written = softmax_of(encoder).position, write_distances(encoder)
    if not isinstance(position, Disentangled):
        return written | {"norm_rel_ebd": "none"}
    return written | {
        "norm_rel_ebd": "layer_norm" if position.table_norm else "none",
        "position_buckets": position.buckets or -1,
        "share_att_key": position.shared_projections,
    }


def _read_convolution(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    kernel, groups = config.get("conv_kernel_size", 0), config.get("conv_groups", 1)
    config.require_one_of("conv_act", "tanh", *ACTIVATIONS)
    if kernel <= 0:
        return {"convolution": None}
    activation = ACTIVATIONS[config.get("conv_act", "tanh")]
    norm = LayerNorm(arguments["eps"])
    return {"convolution": Convolution(kernel, norm, activation, groups, arguments["dropout"])}


def _write_convolution(encoder: EncoderSpec) -> Mapping[str, Any]:
    convolution = encoder.convolution
    if convolution is None:
        return {}
    return {
        "conv_act": name_of(ACTIVATIONS, convolution.activation),
        "conv_groups": convolution.groups,
        "conv_kernel_size": convolution.kernel,
    }


KEYS = (
    *changed(
        SHARED_KEYS,
        num_hidden_layers=24,
        hidden_size=1536,
        num_attention_heads=24,
        intermediate_size=6144,
        vocab_size=128100,
    ),
    Key("attention_head_size", "head_width"),
    KeyGroup(_read_distances, _write_distances),
    KeyGroup(_read_convolution, _write_convolution),
)

_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    *SHARED_ROWS,
    Rename("encoder.LayerNorm", "distances.norm"),
    Ignore("encoder.LayerNorm.*", "a norm of distances, which this encoder does not have"),
    Rename("encoder.conv.conv", "convolution.inner"),
    Rename("encoder.conv.LayerNorm", "convolution.norm"),
    Concat((_SELF + "query_proj", _SELF + "key_proj", _SELF + "value_proj"), "layers.{l}.attention.qkv"),
    Rename(_SELF + "pos_key_proj", "layers.{l}.attention.distances.key"),
    Rename(_SELF + "pos_query_proj", "layers.{l}.attention.distances.query"),
)


def spec(*, convolution: Convolution | None, **first: Any) -> EncoderSpec:
    """A DeBERTa v2 or v3 of the given sizes; ``first`` are arguments of the first version's `spec`."""
    return replace(first_spec(key_bias=True, **first), convolution=convolution)


HEADS = (*FIRST_HEADS, CHOICE)

_V2 = "He et al. 2021"
_CONVOLUTION = {"conv_act": "gelu", "conv_kernel_size": 3}
_BASE = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_XSMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}

PUBLISHED = (
    Release("microsoft/deberta-v2-xlarge", _CONVOLUTION, _V2),
    Release("microsoft/deberta-v2-xxlarge", {"num_hidden_layers": 48, **_CONVOLUTION}, _V2),
    Release("microsoft/deberta-v3-xsmall", _BASE | _XSMALL),
    Release("microsoft/deberta-v3-small", _BASE | {"num_hidden_layers": 6}),
    Release("microsoft/deberta-v3-base", _BASE),
    Release("microsoft/deberta-v3-large", LARGE),
    Release("microsoft/mdeberta-v3-base", _BASE | {"vocab_size": 251000}),
    Release(
        "naver/provence-reranker-debertav3-v1",
        LARGE,
        "Chirkova et al. 2025",
        "CC-BY-NC-4.0",
        roles=(),
        use="reranking and context pruning",
    ),
)

DEBERTA_V2 = Family(
    name="deberta_v2",
    model_types=("deberta-v2",),
    stem="DebertaV2",
    paper="He, Gao & Chen 2023",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="deberta.",
    heads=HEADS,
    releases=PUBLISHED,
    released=DISENTANGLED | {"norm_rel_ebd": "layer_norm", "position_buckets": 256, "share_att_key": True},
    license="MIT",
    parts=parts,
    outside_prefix=("heads.", "pooler."),
    classes={**CLASSES, frozenset({"sequence", "prune"}): PRUNED_CLASS},
    hf_difference="distances beyond those of training are merged without clamping",
)
