"""RoBERTa (Liu et al. 2019) and models with its architecture: XLM-R, CamemBERT, DistilRoBERTa, data2vec.

The layers are BERT's. Positions begin after the padding id, so the first token uses row 2 of the table, and
there is one token type. XLM-R, CamemBERT and data2vec's text encoder are separate families because their
config.json and classes have different names; tensors and settings are the same. jina-embeddings-v3 (Sturua et
al. 2024) is an XLM-R with rotary positions, other names of tensors, and low-rank updates for five tasks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import rotary_spec
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_KEYS, ENCODER_ROWS, LARGE, with_decoder
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import CHOICE, DENSE_OR_TOKENS, SPAN, masked_words
from unmask.families.rope import read_rope, rotary_of, write_rope
from unmask.spec import EncoderSpec, LearnedPositions
from unmask.spec.check import require_positive
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, changed, in_range, only
from unmask.spec.tensor_map import Concat, Rename

KEYS = changed(BERT_KEYS, pad_token_id=1)

ROWS = ENCODER_ROWS


def spec(*, padding_id: int, positions: int, **bert: Any) -> EncoderSpec:
    """A RoBERTa of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    if positions < padding_id + 2:
        raise CorruptCheckpoint(
            f"max_position_embeddings is {positions}; it must be at least {padding_id + 2}, because "
            f"positions begin after pad_token_id, which is {padding_id}"
        )
    encoder = bert_spec(padding_id=padding_id, positions=positions, **bert)
    after_padding = LearnedPositions(positions, offset=padding_id + 1)
    return replace(encoder, embedding=replace(encoder.embedding, positions=after_padding))


HEADS = (
    masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", activation="gelu"),
    *DENSE_OR_TOKENS,
    SPAN,
    CHOICE,
)

RELEASED = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
"""Keys of the published config.json files that differ from BERT's."""


def _family(
    name: str, model_type: str, stem: str, paper: str, *releases: Release, prefix: str = "roberta."
) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        stem=stem,
        paper=paper,
        keys=with_decoder(KEYS),
        encoder_rows=ROWS,
        spec=spec,
        prefix=prefix,
        heads=HEADS,
        releases=releases,
        released=RELEASED,
        license="MIT",
    )


ROBERTA = _family(
    "roberta",
    "roberta",
    "Roberta",
    "Liu et al. 2019",
    Release("FacebookAI/roberta-base"),
    Release("FacebookAI/roberta-large", LARGE),
    Release("distilbert/distilroberta-base", {"num_hidden_layers": 6}, "Sanh et al. 2019", "Apache-2.0"),
)

_WORDS = {"vocab_size": 250_002}


def _search(name: str, paper: str, **config: Any) -> Release:
    return Release(name, _WORDS | config, paper, roles=(), use=SEARCH_LANGUAGES)


XLM_ROBERTA = _family(
    "xlm_roberta",
    "xlm-roberta",
    "XLMRoberta",
    "Conneau et al. 2020",
    Release("FacebookAI/xlm-roberta-base", _WORDS),
    Release("FacebookAI/xlm-roberta-large", _WORDS | LARGE),
    _search("intfloat/multilingual-e5-base", "Wang et al. 2024"),
    _search("intfloat/multilingual-e5-large", "Wang et al. 2024", **LARGE),
    _search("BAAI/bge-m3", "Chen et al. 2024", max_position_embeddings=8194, **LARGE),
)

CAMEMBERT = _family(
    "camembert",
    "camembert",
    "Camembert",
    "Martin et al. 2020",
    Release("almanach/camembert-base", {"vocab_size": 32005}),
)

DATA2VEC_TEXT = _family(
    "data2vec_text",
    "data2vec-text",
    "Data2VecText",
    "Baevski et al. 2022",
    Release("facebook/data2vec-text-base"),
    prefix="data2vec_text.",
)

# --- jina-embeddings-v3 -----------------------------------------------------------------------------------

THETA = 20_000.0
"""The theta of jina-embeddings-v3."""


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions: in one object in configs of `transformers`, in one key in the authors'."""
    theta = config.get("rotary_emb_base", THETA)
    in_range(config, "rotary_emb_base", theta, require_positive)
    return {"rotary": read_rope(config.get_optional("rope_parameters", dict) or {}, theta)}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"rope_parameters": write_rope(rotary_of(encoder))}


JINA_KEYS = (
    only("position_embedding_type", "rotary"),
    only("is_decoder", False),
    only("add_cross_attention", False),
    only("emb_pooler", None),
    *changed(ENCODER_KEYS, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5, vocab_size=250_002),
    KeyGroup(_read_rotary, _write_rotary),
    Key("max_position_embeddings", "trained_tokens", 8194),
)

_LAYER = "encoder.layers.{l}."

JINA_ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("emb_ln", "embedding.norm"),
    Rename(_LAYER + "mixer.Wqkv", "layers.{l}.attention.qkv"),
    Rename(_LAYER + "mixer.out_proj", "layers.{l}.attention.out"),
    Rename(_LAYER + "norm1", "layers.{l}.attention_norm"),
    Rename(_LAYER + "mlp.fc1", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "mlp.fc2", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "norm2", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)

_MODULE = "layers.{l}."

JINA_MODULES = (
    Concat(tuple(_MODULE + f"self_attn.{name}_proj" for name in "qkv"), "layers.{l}.attention.qkv"),
    Rename(_MODULE + "self_attn.o_proj", "layers.{l}.attention.out"),
    Rename(_MODULE + "mlp.fc1", "layers.{l}.feedforward.inner"),
    Rename(_MODULE + "mlp.fc2", "layers.{l}.feedforward.outer"),
)


JINA_V3 = Family(
    name="jina_v3",
    model_types=("jina_embeddings_v3", "xlm-roberta"),
    distinguishing_values={"xlm-roberta": {"position_embedding_type": "rotary"}},
    stem="JinaEmbeddingsV3",
    paper="Sturua et al. 2024",
    keys=JINA_KEYS,
    encoder_rows=JINA_ROWS,
    spec=rotary_spec,
    prefix="roberta.",
    heads=(*HEADS[:1], *DENSE_OR_TOKENS, SPAN),
    releases=(
        Release("jinaai/jina-embeddings-v3", {**LARGE, "type_vocab_size": 1}, roles=(), use=SEARCH_LANGUAGES),
    ),
    released={"pad_token_id": 1},
    license="CC-BY-NC-4.0",
    linear_modules=JINA_MODULES,
)
