"""NomicBERT (Nussbaum, Morris, Duderstadt & Mulyar 2024).

Post-norm layers like BERT's, with SwiGLU, rotary positions instead of learned ones, matrices without biases,
and two token types. Config keys are read under both names that published checkpoints use.

nomic-embed-text-v2-moe (Nussbaum & Duderstadt 2025) has GELU networks without gates, with biases, of which
every second is a mixture of experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import ACTIVATIONS, activation_of, biases, head_width_of, post_norm_encoder
from unmask.families.family import SEARCH, SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import POOLED_OR_TOKENS, masked_words
from unmask.families.rope import read_rope, rotary_of, write_rope
from unmask.spec import (
    Activation,
    EncoderSpec,
    ExpertFeedForward,
    GatedFeedForward,
    PlainFeedForward,
    Rotary,
    SoftmaxAttention,
)
from unmask.spec.check import require_at_least, require_deviation
from unmask.spec.config_keys import Arguments, Compat, Fixed, Key, KeyGroup, in_range, name_of, only
from unmask.spec.tensor_map import Concat, Rename

THETA = 1000.0
"""The default theta."""

GATED: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}
"""The published ``activation_function`` -> ours."""


def _read_activation(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    config.require_one_of("hidden_act", *ACTIVATIONS)
    config.require_one_of("activation_function", *GATED)
    gated = GATED[config.get("activation_function", "swiglu")]
    if "hidden_act" not in config.values:
        return {"activation": gated}
    return {"activation": ACTIVATIONS[config.get("hidden_act", "silu")]}


def _write_activation(encoder: EncoderSpec) -> Mapping[str, Any]:
    activation = activation_of(encoder)
    older = {ours: name for name, ours in GATED.items()}.get(activation)
    written = {"hidden_act": name_of(ACTIVATIONS, activation)}
    return written if older is None else written | {"activation_function": older}


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    rotary = read_rope(
        config.get_optional("rope_parameters", dict) or {}, config.get("rotary_emb_base", THETA)
    )
    return {"rotary": replace(rotary, interleaved=config.get("rotary_emb_interleaved", False))}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    rotary = rotary_of(encoder)
    return {"rope_parameters": write_rope(rotary), "rotary_emb_interleaved": rotary.interleaved}


KEYS = (
    only("is_decoder", False),
    only("causal", False),
    only("prenorm", False),
    only("parallel_block", False),
    only("parallel_block_tied_norm", False),
    only("use_rms_norm", False, None),
    only("qkv_proj_bias", False),
    only("mlp_fc1_bias", False),
    only("mlp_fc2_bias", False),
    only("num_experts", 0, None),
    only("moe_every_n_layers", 0, None),
    only("rotary_emb_fraction", 1.0),
    only("rotary_emb_scale_base", None),
    only("rotary_scaling_factor", None),
    only("scale_attn_weights", True),
    only("scale_attn_by_inverse_layer_idx", False),
    only("rope_scaling", None),
    KeyGroup(_read_activation, _write_activation),
    Key("num_hidden_layers", "layers", 12, older="n_layer"),
    Key("hidden_size", "width", 768, older="n_embd"),
    Key("num_attention_heads", "heads", 12, older="n_head"),
    Key("head_dim", "head_width"),
    Key("intermediate_size", "feedforward", 3072, older="n_inner"),
    Key("vocab_size", "vocabulary", 30528),
    Key("type_vocab_size", "segments", 2),
    KeyGroup(_read_rotary, _write_rotary),
    Key("hidden_dropout_prob", "dropout", 0.0, older="resid_pdrop"),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0, older="attn_pdrop"),
    Key("layer_norm_eps", "eps", 1e-12, older="layer_norm_epsilon"),
    Key("initializer_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
    Key("max_position_embeddings", "trained_tokens", 2048, overriding="max_trained_positions"),
)

_LAYER = "encoder.layers.{l}."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("emb_ln", "embedding.norm"),
    Rename(_LAYER + "attn.Wqkv", "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attn.out_proj", "layers.{l}.attention.out"),
    Rename(_LAYER + "norm1", "layers.{l}.attention_norm"),
    # The activation applies to the second of their two matrices.
    Concat((_LAYER + "mlp.fc12", _LAYER + "mlp.fc11"), "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.fc2", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "norm2", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)

_MODULE = "layers.{l}."

LINEAR_MODULES = (
    Concat(tuple(_MODULE + f"self_attn.{name}_proj" for name in ("q", "k", "v")), "layers.{l}.attention.qkv"),
    Rename(_MODULE + "self_attn.o_proj", "layers.{l}.attention.out"),
    Concat((_MODULE + "mlp.gate_proj", _MODULE + "mlp.up_proj"), "layers.{l}.feedforward.inner"),
    Rename(_MODULE + "mlp.down_proj", "layers.{l}.feedforward.outer"),
)


def spec(
    *,
    width: int,
    heads: int,
    head_width: int | None,
    feedforward: int,
    rotary: Rotary,
    activation: Activation,
    attention_dropout: float,
    bias: bool = False,
    **others: Any,
) -> EncoderSpec:
    """A NomicBERT of the given sizes; ``others`` are those of `post_norm_encoder`.

    ``bias``: whether attention's matrices and the feed-forward output matrix have biases.
    """
    mixer = SoftmaxAttention(
        heads,
        head_width_of(width, heads) if head_width is None else head_width,
        position=rotary,
        **biases(bias),
        dropout=attention_dropout,
    )
    network = GatedFeedForward(feedforward, activation, out_bias=bias)
    return post_norm_encoder(width=width, mixer=mixer, feedforward=network, **others)


HEADS = (
    masked_words(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
        "cls.predictions.bias",
        "cls.predictions.decoder",
    ),
    POOLED_OR_TOKENS,
)

PUBLISHED = (Release("nomic-ai/nomic-embed-text-v1.5", roles=(), use=SEARCH),)

NOMICBERT = Family(
    name="nomicbert",
    model_types=("nomic_bert",),
    stem="NomicBert",
    paper="Nussbaum et al. 2024",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="nomic_bert.",
    heads=HEADS,
    releases=PUBLISHED,
    other_prefixes=("bert.",),
    linear_modules=LINEAR_MODULES,
)

# --- with experts -----------------------------------------------------------------------------------------

CHOSEN, EVERY, BALANCE = 2, 2, 0.1
"""Defaults: experts for each token, the interval of layers with experts, the factor of their balance."""


def _read_experts(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The experts of every layer; None for layers with one network."""
    count = config.get_optional("num_experts", int) or 0
    every = config.get_optional("moe_every_n_layers", int) or 0
    chosen = config.get("moe_top_k", CHOSEN)
    normalize = config.values.get("moe_normalize_expert_weights") in (True, 1)
    config.require_one_of("moe_normalize_expert_weights", False, None, True, 1)
    balance = config.get("router_aux_loss_coef", BALANCE)
    in_range(config, "router_aux_loss_coef", balance, require_deviation)
    for name, value in (("num_experts", count), ("moe_every_n_layers", every)):
        in_range(config, name, value, partial(require_at_least, least=0))
    in_range(config, "moe_top_k", chosen, partial(require_at_least, least=1))
    if not count or not every:
        return {"experts": None, "every": every or EVERY}
    experts = ExpertFeedForward(
        arguments["feedforward"], arguments["activation"], count, chosen, normalize, balance=balance
    )
    return {"experts": experts, "every": every}


def _write_experts(encoder: EncoderSpec) -> Mapping[str, Any]:
    networks = [layer.feedforward for layer in encoder.layers]
    places = [place for place, one in enumerate(networks) if isinstance(one, ExpertFeedForward)]
    if not places:
        return {"num_experts": 0, "moe_every_n_layers": 0}
    experts = networks[places[0]]
    assert isinstance(experts, ExpertFeedForward)
    every = places[1] - places[0] if len(places) > 1 else max(EVERY, len(networks) - places[0])
    return {
        "num_experts": experts.experts,
        "moe_top_k": experts.chosen,
        "moe_every_n_layers": every,
        "moe_normalize_expert_weights": experts.normalize,
        "router_aux_loss_coef": experts.balance,
    }


_OF_EXPERTS = ("num_experts", "moe_every_n_layers", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")

_GATES = next(key for key in KEYS if isinstance(key, KeyGroup) and key.read is _read_activation)

EXPERT_KEYS = (
    *(key for key in KEYS if key is not _GATES and not (isinstance(key, Fixed) and key.name in _OF_EXPERTS)),
    Key("activation_function", "activation", "gelu", {"gelu": "gelu"}),
    only("qkv_proj_bias", True, written=True),
    only("mlp_fc1_bias", True, written=True),
    only("mlp_fc2_bias", True, written=True),
    only("expert_choice_router", False, None),
    only("num_shared_experts", 0, None),
    only("ffn_div", 1, None),
    KeyGroup(_read_experts, _write_experts),
)

EXPERT_ROWS = (
    *(row for row in ROWS if not isinstance(row, Concat)),
    Rename(_LAYER + "mlp.fc1", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.router.layer", "layers.{l}.feedforward.router"),
    Rename(_LAYER + "mlp.experts.mlp.w1", "layers.{l}.feedforward.experts.inner"),
    Rename(_LAYER + "mlp.experts.mlp.w2", "layers.{l}.feedforward.experts.outer"),
    Rename(_LAYER + "mlp.experts.bias", "layers.{l}.feedforward.experts.bias"),
)


def expert_spec(
    *, experts: ExpertFeedForward | None, every: int, activation: Activation, feedforward: int, **others: Any
) -> EncoderSpec:
    """A NomicBERT without gates; with ``experts``, in every layer whose number is 1 modulo ``every``."""
    encoder = spec(feedforward=feedforward, activation=activation, bias=True, **others)
    plain = replace(encoder.layers[0], feedforward=PlainFeedForward(feedforward, activation))
    mixed = plain if experts is None else replace(plain, feedforward=experts)
    layers = range(len(encoder.layers))
    return replace(encoder, layers=tuple(mixed if layer % every == 1 else plain for layer in layers))


_V2 = {
    "activation_function": "gelu",
    "num_experts": 8,
    "moe_top_k": CHOSEN,
    "moe_every_n_layers": EVERY,
    "rotary_emb_base": 10_000.0,
    "type_vocab_size": 1,
    "vocab_size": 250_048,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}

NOMIC_EXPERTS = Family(
    name="nomic_experts",
    model_types=("nomic_bert",),
    distinguishing_values={"nomic_bert": {"activation_function": "gelu"}},
    stem="NomicBert",
    paper="Nussbaum & Duderstadt 2025",
    keys=EXPERT_KEYS,
    encoder_rows=EXPERT_ROWS,
    spec=expert_spec,
    prefix="nomic_bert.",
    heads=HEADS,
    releases=(Release("nomic-ai/nomic-embed-text-v2-moe", _V2, roles=(), use=SEARCH_LANGUAGES),),
    other_prefixes=("bert.",),
)
