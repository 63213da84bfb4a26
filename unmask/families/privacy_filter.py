"""openai/privacy-filter (OpenAI 2026): a tagger of personal data, gpt-oss's layers read in both directions.

Pre-norm layers with RMSNorm, windows to both sides, heads that share keys and values, interleaved rotary
positions stretched by YaRN, and in every layer attention sinks and a mixture of experts with a clamped gate
and biases (Agarwal et al. 2025). The head gives tokens the BIOES labels of eight types of personal data.

`transformers` computes routers and experts in float32 whatever the type of the weights; here they have the
type of the others.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families import eurobert
from unmask.families.common import with_every_layer
from unmask.families.family import CheckpointInfo, Family, Release
from unmask.families.heads import HeadLayout
from unmask.families.labels import default_labels, labels_by_number
from unmask.families.rope import read_rope, rotary_of, write_rope
from unmask.spec import (
    ClampedGate,
    Classifier,
    EncoderSpec,
    ExpertFeedForward,
    SlidingWindow,
)
from unmask.spec.check import require_at_least, require_deviation, require_positive, require_size
from unmask.spec.config_keys import Arguments, Compat, Field, Key, KeyGroup, changed, softmax_of
from unmask.spec.tensor_map import Rename, Stacked

THETA = 150_000.0
"""The default theta."""

ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The default ``rope_parameters``."""

TYPES = (
    "account_number",
    "private_address",
    "private_date",
    "private_email",
    "private_person",
    "private_phone",
    "private_url",
    "secret",
)
"""The types of personal data."""

LABELS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BIES"))
"""The names of a head's classes where config.json has none for them."""


def experts_of(encoder: EncoderSpec) -> ExpertFeedForward:
    """The experts of layer 0."""
    network = encoder.layers[0].feedforward
    assert isinstance(network, ExpertFeedForward)
    return network


def gate_of(encoder: EncoderSpec) -> ClampedGate:
    """The gate of the experts of layer 0."""
    gate = experts_of(encoder).gate
    assert gate is not None
    return gate


def _radius(encoder: EncoderSpec) -> int:
    pattern = softmax_of(encoder).pattern
    assert isinstance(pattern, SlidingWindow)
    return pattern.radius


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    rope = config.get_optional("rope_parameters", dict)
    return {"rotary": replace(read_rope(ROPE if rope is None else rope, THETA), interleaved=True)}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"rope_parameters": write_rope(rotary_of(encoder))}


KEYS = (
    *changed(
        eurobert.LLAMA_KEYS,
        num_hidden_layers=8,
        hidden_size=640,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=640,
        vocab_size=200_064,
        attention_bias=True,
        max_position_embeddings=131_072,
    ),
    Key("sliding_window", "radius", 128, field=Field(_radius, partial(require_at_least, least=0))),
    KeyGroup(_read_rotary, _write_rotary),
    Key(
        "num_local_experts",
        "experts",
        128,
        older="num_experts",
        field=Field(lambda encoder: experts_of(encoder).experts, require_size),
    ),
    Key(
        "num_experts_per_tok",
        "chosen",
        4,
        field=Field(lambda encoder: experts_of(encoder).chosen, require_size),
    ),
    Key("swiglu_alpha", "slope", 1.702, field=Field(lambda spec: gate_of(spec).slope, require_positive)),
    Key("swiglu_limit", "limit", 7.0, field=Field(lambda spec: gate_of(spec).limit, require_positive)),
    Key(
        "router_aux_loss_coef",
        "balance",
        0.001,
        field=Field(lambda encoder: experts_of(encoder).balance, require_deviation),
    ),
)

_LAYER = "layers.{l}."
_EXPERTS = _LAYER + "mlp.experts."
_OURS = _LAYER + "feedforward.experts."


def _count(encoder: EncoderSpec) -> int:
    return experts_of(encoder).experts


ROWS = (
    *(row for row in eurobert.ROWS if ".mlp." not in str(row.theirs)),
    Rename(_LAYER + "self_attn.sinks", _LAYER + "attention.sinks"),
    Rename(_LAYER + "mlp.router", _LAYER + "feedforward.router"),
    # Of each expert, the features of the gate before those that it multiplies.
    Stacked(_EXPERTS + "gate_up_proj", _OURS + "inner", _count, transposed=True),
    Stacked(_EXPERTS + "gate_up_proj_bias", _OURS + "inner_bias", _count),
    Stacked(_EXPERTS + "down_proj", _OURS + "outer", _count),
    Stacked(_EXPERTS + "down_proj_bias", _OURS + "outer_bias", _count),
)


def spec(
    *,
    radius: int,
    feedforward: int,
    experts: int,
    chosen: int,
    slope: float,
    limit: float,
    balance: float,
    **sizes: Any,
) -> EncoderSpec:
    """A privacy filter of the given sizes; ``sizes`` are other arguments of EuroBERT's `spec`."""
    encoder = eurobert.spec(activation="silu", feedforward=feedforward, feedforward_bias=False, **sizes)
    return with_every_layer(
        encoder,
        mixer={"pattern": SlidingWindow(radius), "sinks": True},
        # A softmax over the chosen experts is one over all of them, divided by the sum of the chosen.
        feedforward=ExpertFeedForward(
            feedforward,
            "silu",
            experts,
            chosen,
            normalize=True,
            bias=False,
            gate=ClampedGate(slope, limit),
            router_bias=True,
            expert_biases=True,
            balance=balance,
        ),
    )


def _tagger(info: CheckpointInfo, classes: int) -> Classifier:
    return Classifier("tokens", classes, "tokens", labels=LABELS if classes == len(LABELS) else None)


def _write_tagger(head: Classifier) -> Mapping[str, Any]:
    """The names of two unnamed classes: without names, a config.json of this family means `LABELS`."""
    return {} if head.labels or head.classes != 2 else labels_by_number(default_labels(2))


HEADS = (
    HeadLayout("score.weight", ("tokens",), _tagger, (Rename("score", "heads.tokens.out"),), _write_tagger),
)

PRIVACY_FILTER = Family(
    name="privacy_filter",
    model_types=("openai_privacy_filter",),
    stem="OpenAIPrivacyFilter",
    paper="OpenAI 2026",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=HEADS,
    releases=(Release("openai/privacy-filter", use="finding personal data"),),
    released={"pad_token_id": 199_999},
    roles=(),
)
