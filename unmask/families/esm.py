"""ESM-1b (Rives et al. 2021) and ESM-2 (Lin et al. 2023): encoders of proteins, whose tokens are amino acids.

Pre-norm layers with exact GELU; ESM-2 has rotary positions, ESM-1b learned ones after the padding id. Mask
tokens are dropped inputs, see `unmask.spec.TokenDropout`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_KEYS, ENCODER_ROWS, NO_DECODER
from unmask.families.family import Family, Release
from unmask.families.heads import DENSE_OR_TOKENS, masked_words
from unmask.families.rope import rotary_of
from unmask.spec import EncoderSpec, LearnedPositions, Rotary, SoftmaxAttention, TokenDropout
from unmask.spec.check import require_positive, require_size
from unmask.spec.compat import Compat
from unmask.spec.config_keys import Arguments, KeyGroup, changed, in_range, only
from unmask.spec.tensor_map import Ignore, Rename

THETA = 10_000.0
"""The default theta."""
LONGEST = 1026
"""The default number of positions, with two for special tokens."""


def _read_positions(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions and the longest text of training, or a table that begins after the padding id."""
    config.require_one_of("position_embedding_type", "absolute", "rotary")
    rows, theta = config.get("max_position_embeddings", LONGEST), config.get("rope_theta", THETA)
    in_range(config, "max_position_embeddings", rows, require_size)
    in_range(config, "rope_theta", theta, require_positive)
    if config.get("position_embedding_type", "absolute") == "rotary":
        return {"rotary": Rotary(theta), "positions": None, "rows": rows}
    padding_id = arguments["padding_id"]
    if padding_id is None:
        raise CorruptCheckpoint(
            f"{config.name} does not say pad_token_id, after which positions begin where "
            "position_embedding_type is absolute"
        )
    if rows < padding_id + 2:
        raise CorruptCheckpoint(
            f"max_position_embeddings is {rows}; it must be at least {padding_id + 2}, because positions "
            f"begin after pad_token_id, which is {padding_id}"
        )
    return {"rotary": None, "positions": LearnedPositions(rows, offset=padding_id + 1), "rows": rows}


def _write_positions(encoder: EncoderSpec) -> Mapping[str, Any]:
    positions = encoder.embedding.positions
    if positions is not None:
        return {"position_embedding_type": "absolute", "max_position_embeddings": positions.rows}
    return {
        "position_embedding_type": "rotary",
        "max_position_embeddings": encoder.trained_tokens,
        "rope_theta": rotary_of(encoder).theta,
    }


def _read_dropout(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    mask_id = config.get_optional("mask_token_id", int)
    if not (config.get_optional("token_dropout", bool) or False):
        return {"token_dropout": None}
    if mask_id is None:
        raise CorruptCheckpoint(
            f"{config.name} says token_dropout is true and does not say mask_token_id, the token to drop"
        )
    if not 0 <= mask_id < arguments["vocabulary"]:
        raise CorruptCheckpoint(
            f"mask_token_id is {mask_id}; with token_dropout it must be at least 0 and below vocab_size, "
            f"which is {arguments['vocabulary']}"
        )
    return {"token_dropout": TokenDropout(mask_id)}


def _write_dropout(encoder: EncoderSpec) -> Mapping[str, Any]:
    dropout = encoder.embedding.token_dropout
    if dropout is None:
        return {"token_dropout": False}
    if dropout.rate != TokenDropout.rate:
        raise UnknownArchitecture(
            f"a config.json of this family cannot say that the rate of token dropout is {dropout.rate}; in "
            f"its authors' code it is {TokenDropout.rate}"
        )
    return {"token_dropout": True, "mask_token_id": dropout.mask_id}


def _read_norm(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    return {"embedding_norm": config.get_optional("emb_layer_norm_before", bool) or False}


KEYS = (
    *NO_DECODER,
    only("hidden_act", "gelu", written=True),
    only("is_folding_model", False, None),
    only("esmfold_config", None),
    only("vocab_list", None),
    *changed(ENCODER_KEYS, hidden_act=..., type_vocab_size=..., vocab_size=33),
    KeyGroup(_read_norm, lambda encoder: {"emb_layer_norm_before": encoder.embedding.norm is not None}),
    KeyGroup(_read_positions, _write_positions),
    KeyGroup(_read_dropout, _write_dropout),
)

_LAYER = "encoder.layer.{l}."
_NORMS = ("embedding.norm", "layers.{l}.attention_norm", "layers.{l}.feedforward_norm")

ROWS = (
    *(row for row in ENCODER_ROWS if not (isinstance(row, Rename) and row.ours in _NORMS)),
    Rename("embeddings.layer_norm", "embedding.norm"),
    Rename(_LAYER + "attention.LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "LayerNorm", "layers.{l}.feedforward_norm"),
    Rename("encoder.emb_layer_norm_after", "final_norm"),
    Ignore("embeddings.position_embeddings.weight", "a table of positions that rotary positions replace"),
    Ignore("*rotary_embeddings.inv_freq", "rotary frequencies, which are computed"),
    Ignore("contact_head.*", "a head that predicts which residues touch, which is not built"),
)


def spec(
    *,
    rotary: Rotary | None,
    positions: LearnedPositions | None,
    rows: int,
    embedding_norm: bool,
    token_dropout: TokenDropout | None,
    **bert: Any,
) -> EncoderSpec:
    """An ESM of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    encoder = bert_spec(positions=rows, activation="gelu", segments=0, **bert)
    layer = encoder.layers[0]
    assert isinstance(layer.mixer, SoftmaxAttention)
    mixer = layer.mixer if rotary is None else replace(layer.mixer, position=rotary)
    layer = replace(layer, mixer=mixer, norm_first=True)
    return replace(
        encoder,
        embedding=replace(
            encoder.embedding,
            positions=positions,
            norm=layer.norm if embedding_norm else None,
            token_dropout=token_dropout,
            dropout=0.0,
        ),
        layers=(layer,) * len(encoder.layers),
        final_norm=layer.norm,
        trained_tokens=None if rotary is None else rows,
    )


HEADS = (
    masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", activation="gelu"),
    *DENSE_OR_TOKENS,
)


def _sizes(layers: int, width: int, heads: int = 20) -> Mapping[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


PUBLISHED = (
    Release("facebook/esm2_t6_8M_UR50D", _sizes(6, 320)),
    Release("facebook/esm2_t12_35M_UR50D", _sizes(12, 480)),
    Release("facebook/esm2_t30_150M_UR50D", _sizes(30, 640)),
    Release("facebook/esm2_t33_650M_UR50D", _sizes(33, 1280)),
    Release("facebook/esm2_t36_3B_UR50D", _sizes(36, 2560, 40)),
    Release("facebook/esm2_t48_15B_UR50D", _sizes(48, 5120, 40)),
    Release(
        "facebook/esm1b_t33_650M_UR50S",
        {**_sizes(33, 1280), "emb_layer_norm_before": True, "position_embedding_type": "absolute"},
        "Rives et al. 2021",
    ),
)

ESM = Family(
    name="esm",
    model_types=("esm",),
    stem="Esm",
    paper="Lin et al. 2023",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="esm.",
    heads=HEADS,
    releases=PUBLISHED,
    released={
        "emb_layer_norm_before": False,
        "layer_norm_eps": 1e-5,
        "mask_token_id": 32,
        "pad_token_id": 1,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    license="MIT",
)
