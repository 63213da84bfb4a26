"""Qwen3 (Yang et al. 2025) read as an encoder: Qwen3-Embedding and the models trained from it.

EuroBERT's layers with an RMSNorm over the queries and keys of each head. Attention is causal, so the vector
of a text is that of its last token, unless config.json says ``is_causal`` is false, as models that read in
both directions do; vLLM reads that key, and `transformers` does not. Sliding windows, which would be causal
too, and mixtures of experts are refused.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families import eurobert
from unmask.families.common import with_every_layer
from unmask.families.family import CLASSES, SEARCH_LANGUAGES, CheckpointInfo, Family, Release
from unmask.families.heads import HeadLayout, tying
from unmask.spec import (
    CausalAttention,
    Classifier,
    EncoderSpec,
    FullAttention,
    MaskedLM,
    QueryKeyNorm,
    RMSNorm,
)
from unmask.spec.config_keys import Arguments, Compat, KeyGroup, changed, only
from unmask.spec.tensor_map import Copy, Rename


def _read_direction(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Whether a token reads only itself and the tokens before it."""
    return {"causal": config.get("is_causal", True)}


def _write_direction(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The key that says that a token reads in both directions."""
    return {} if encoder.causal else {"is_causal": False}


def _read_layer_types(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Refuses layers with a window, whose attention would be causal too."""
    for kind in config.get_optional("layer_types", list) or []:
        JsonSettings(config.name, {"layer_types": kind}).require_one_of("layer_types", "full_attention")
    for unused in ("sliding_window", "max_window_layers"):  # of windows, which no layer has
        config.get_optional(unused, int)
    return {}


KEYS = (
    eurobert.ACTIVATION,
    *changed(
        eurobert.LLAMA_KEYS,
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        intermediate_size=22016,
        vocab_size=151_936,
        rms_norm_eps=1e-6,
        max_position_embeddings=32768,
    ),
    eurobert.ROTARY,
    only("use_sliding_window", False),
    KeyGroup(_read_layer_types, lambda encoder: {}),
    KeyGroup(_read_direction, _write_direction),
)

_ATTENTION = "layers.{l}.self_attn."

ROWS = (
    *eurobert.ROWS,
    Rename(_ATTENTION + "q_norm", "layers.{l}.attention.query_norm"),
    Rename(_ATTENTION + "k_norm", "layers.{l}.attention.key_norm"),
)


def spec(*, causal: bool, eps: float, **sizes: Any) -> EncoderSpec:
    """A Qwen3 of the given sizes; ``sizes`` are other arguments of EuroBERT's `spec`."""
    encoder = eurobert.spec(eps=eps, feedforward_bias=False, **sizes)
    pattern = CausalAttention() if causal else FullAttention()
    return with_every_layer(encoder, mixer={"pattern": pattern, "query_key_norm": QueryKeyNorm(RMSNorm(eps))})


def heads_of_decoder(*, tied: bool) -> tuple[HeadLayout, ...]:
    """The head over the vocabulary and classifiers, as `transformers` puts them on decoders.

    Args:
        tied: whether the head over the vocabulary has the embedding's matrix if config.json does not say.
    """

    def masked(info: CheckpointInfo, vocabulary: int) -> MaskedLM:
        return MaskedLM(None, info.config.get("tie_word_embeddings", tied), bias=False)

    def without_tensor(info: CheckpointInfo, vocabulary: int) -> MaskedLM | None:
        """Only the class that a checkpoint was saved from tells of a tied head."""
        head = masked(info, vocabulary)
        return head if head.tied and "lm_head.weight" not in info.shapes else None

    return (
        HeadLayout("embed_tokens.weight", ("masked",), without_tensor, (), of_class="CausalLM"),
        HeadLayout(
            "lm_head.weight",
            ("masked",),
            masked,
            (Rename("lm_head", "heads.masked.decoder"), Copy("lm_head.weight", "embedding.words.weight")),
            tying,
        ),
        HeadLayout(
            "score.weight",
            ("sequence", "tokens"),
            _classifier,
            (Rename("score", "heads.sequence.out"), Rename("score", "heads.tokens.out")),
        ),
    )


def _classifier(info: CheckpointInfo, classes: int) -> Classifier:
    """The head called ``score``; that of tokens has a bias, that of texts has none."""
    if "score.bias" in info.shapes:
        return Classifier("tokens", classes, "tokens")
    return Classifier("sequence", classes, "last", bias=False)


CAUSAL_CLASSES = {**CLASSES, frozenset({"masked"}): "ForCausalLM"}
"""The suffixes of class names: the head over the vocabulary predicts the next token."""

PUBLISHED = (
    Release(
        "Qwen/Qwen3-Embedding-0.6B",
        {
            "num_hidden_layers": 28,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 3072,
            "vocab_size": 151_669,
        },
        "Zhang et al. 2025",
        use=SEARCH_LANGUAGES,
    ),
)

QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    stem="Qwen3",
    paper="Yang et al. 2025",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=heads_of_decoder(tied=False),
    releases=PUBLISHED,
    released={"rope_theta": 1_000_000.0, "pad_token_id": 151_643},
    roles=(),
    classes=CAUSAL_CLASSES,
)
