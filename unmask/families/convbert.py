"""ConvBERT (Jiang et al. 2020): ELECTRA's layers, half of whose heads are convolutions over a token's
surroundings; the linear maps of the smaller ones read their features in groups.

In a padded batch, `transformers` lets the convolutions of a text's last tokens read the padding behind it.
Here there is none, so the states are those that it computes for the text alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.common import with_every_layer
from unmask.families.electra import HEADS as ELECTRA_HEADS
from unmask.families.electra import KEYS as ELECTRA_KEYS
from unmask.families.electra import ROWS as ELECTRA_ROWS
from unmask.families.electra import spec as electra_spec
from unmask.families.family import Family, Release
from unmask.families.heads import SPAN, TOKENS, dense_sequence
from unmask.families.roformer import CHOICE_OF_FIRST
from unmask.spec import EncoderSpec, PlainFeedForward, SpanConvolution
from unmask.spec.check import require_size
from unmask.spec.config_keys import Arguments, Compat, Field, Key, KeyGroup, changed, in_range, softmax_of
from unmask.spec.tensor_map import Rename

RATIO = 2
"""The default of ``head_ratio``, by which the number of heads is divided."""


def _read_heads(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The heads that are left of ``num_attention_heads``, and half of the width for all of them."""
    ratio, said = config.get("head_ratio", RATIO), config.get("num_attention_heads", 12)
    in_range(config, "head_ratio", ratio, require_size)
    in_range(config, "num_attention_heads", said, require_size)
    width = arguments["width"]
    heads = max(said // ratio, 1)
    if width % (2 * heads):
        raise UnknownArchitecture(
            f"{config.name} says hidden_size is {width}, num_attention_heads is {said} and head_ratio is "
            f"{ratio}, which leaves {heads} heads and as many convolutions; twice that number must divide "
            "hidden_size"
        )
    return {"heads": heads, "head_width": width // (2 * heads)}


def _write_heads(encoder: EncoderSpec) -> Mapping[str, Any]:
    mixer = softmax_of(encoder)
    if mixer.mixed_width != encoder.width:
        raise UnknownArchitecture(
            f"a config.json of this family cannot say that heads and convolutions have {mixer.mixed_width} "
            f"features together; they have as many as the width, which is {encoder.width}"
        )
    return {"num_attention_heads": RATIO * mixer.heads, "head_ratio": RATIO}


def _read_kernel(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    kernel = config.get("conv_kernel_size", 9)
    in_range(config, "conv_kernel_size", kernel, require_size)
    if kernel % 2 == 0:
        raise UnknownArchitecture(
            f"{config.name} says conv_kernel_size is {kernel}; it must be odd, to have a middle"
        )
    return {"kernel": kernel}


def _kernel_of(encoder: EncoderSpec) -> Mapping[str, Any]:
    convolution = softmax_of(encoder).span_convolution
    assert convolution is not None
    return {"conv_kernel_size": convolution.kernel}


def _groups_of(encoder: EncoderSpec) -> int:
    network = encoder.layers[0].feedforward
    assert isinstance(network, PlainFeedForward)
    return network.groups


KEYS = (
    *changed(
        ELECTRA_KEYS,
        hidden_size=768,
        num_attention_heads=...,
        intermediate_size=3072,
        embedding_size=768,
    ),
    KeyGroup(_read_heads, _write_heads),
    KeyGroup(_read_kernel, _kernel_of),
    Key("num_groups", "groups", 1, field=Field(_groups_of, require_size)),
)

_SELF = "encoder.layer.{l}.attention.self."
_SPANS = "layers.{l}.attention.spans."

ROWS = (
    *ELECTRA_ROWS,
    Rename(_SELF + "key_conv_attn_layer.depthwise", _SPANS + "depthwise"),
    Rename(_SELF + "key_conv_attn_layer.pointwise", _SPANS + "pointwise"),
    Rename(_SELF + "key_conv_attn_layer.bias", _SPANS + "bias"),
    Rename(_SELF + "conv_kernel_layer", _SPANS + "weights"),
    Rename(_SELF + "conv_out_layer", _SPANS + "values"),
)


def spec(*, heads: int, head_width: int, kernel: int, groups: int, **electra: Any) -> EncoderSpec:
    """A ConvBERT of the given sizes; ``electra`` are other arguments of ELECTRA's `spec`."""
    encoder = electra_spec(heads=1, **electra)
    network = encoder.layers[0].feedforward
    assert isinstance(network, PlainFeedForward)
    return with_every_layer(
        encoder,
        mixer={"heads": heads, "head_width": head_width, "span_convolution": SpanConvolution(kernel)},
        feedforward=replace(network, groups=groups),
    )


HEADS = (
    *(layout for layout in ELECTRA_HEADS if layout.roles == ("masked",)),
    dense_sequence(None, dense="classifier.dense", name="classifier.out_proj"),
    TOKENS,
    SPAN,
    CHOICE_OF_FIRST,
)


def _sizes(width: int, heads: int, groups: int) -> Mapping[str, Any]:
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "embedding_size": 128,
        "num_groups": groups,
    }


PUBLISHED = (
    Release("YituTech/conv-bert-base"),
    Release("YituTech/conv-bert-medium-small", _sizes(384, 8, 2)),
    Release("YituTech/conv-bert-small", _sizes(256, 4, 1)),
)

CONVBERT = Family(
    name="convbert",
    model_types=("convbert",),
    stem="ConvBert",
    paper="Jiang et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="convbert.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=(),
)
