"""BERT's and RoBERTa's layers with the norm before each part and after the last layer (pre-norm).

Megatron-BERT (Shoeybi et al. 2019) is such a BERT. Of such RoBERTas there are XLM-R XL and XXL (Goyal et al.
2021) and the models of Wettig et al. 2023, whose embedding alone has a norm of its own, as RoBERTa's has.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.families.bert import HEADS as BERT_HEADS
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_ROWS, LARGE, with_decoder, with_every_layer
from unmask.families.family import Family, Release
from unmask.families.roberta import HEADS as ROBERTA_HEADS
from unmask.families.roberta import KEYS as ROBERTA_KEYS
from unmask.families.roberta import RELEASED
from unmask.families.roberta import spec as roberta_spec
from unmask.spec import EncoderSpec
from unmask.spec.config_keys import changed
from unmask.spec.tensor_map import Rename, TensorRule

KEYS = changed(ROBERTA_KEYS, vocab_size=50265)

_LAYER = "encoder.layer.{l}."
_NORMS = ("embedding.norm", "layers.{l}.attention_norm", "layers.{l}.feedforward_norm")


def _rows(attention_norm: str, feedforward_norm: str, final_norm: str) -> tuple[TensorRule, ...]:
    """BERT's names of tensors, with these names of the norms of a layer and of the last one."""
    return (
        *(row for row in ENCODER_ROWS if not (isinstance(row, Rename) and row.ours in _NORMS)),
        Rename(_LAYER + attention_norm, "layers.{l}.attention_norm"),
        Rename(_LAYER + feedforward_norm, "layers.{l}.feedforward_norm"),
        Rename(final_norm, "final_norm"),
    )


ROWS = (
    *_rows("attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
)
"""Names of the pre-norm RoBERTa; those of the others follow with their families."""


def spec(base: Callable[..., EncoderSpec], embedding_norm: bool, **sizes: Any) -> EncoderSpec:
    """A pre-norm encoder with the sizes and parts of ``base``, which is BERT's or RoBERTa's `spec`."""
    encoder = base(**sizes)
    norm = encoder.embedding.norm if embedding_norm else None
    embedding, final = replace(encoder.embedding, norm=norm), encoder.layers[0].norm
    return with_every_layer(replace(encoder, embedding=embedding, final_norm=final), norm_first=True)


XLM_ROBERTA_XL = Family(
    name="xlm_roberta_xl",
    model_types=("xlm-roberta-xl",),
    stem="XLMRobertaXL",
    paper="Goyal et al. 2021",
    keys=with_decoder(
        changed(
            KEYS,
            num_hidden_layers=36,
            hidden_size=2560,
            num_attention_heads=32,
            intermediate_size=10240,
            vocab_size=250880,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            max_position_embeddings=514,
        )
    ),
    encoder_rows=_rows("attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"),
    spec=partial(spec, roberta_spec, False),
    prefix="roberta.",
    heads=ROBERTA_HEADS,
    releases=(
        Release("facebook/xlm-roberta-xl"),
        Release(
            "facebook/xlm-roberta-xxl",
            {"num_hidden_layers": 48, "hidden_size": 4096, "intermediate_size": 16384},
        ),
    ),
    released={"pad_token_id": 1},
    license="MIT",
)

ROBERTA_PRELAYERNORM = Family(
    name="roberta_prelayernorm",
    model_types=("roberta-prelayernorm",),
    stem="RobertaPreLayerNorm",
    paper="Wettig et al. 2023",
    keys=with_decoder(KEYS),
    encoder_rows=ROWS,
    spec=partial(spec, roberta_spec, True),
    prefix="roberta_prelayernorm.",
    heads=ROBERTA_HEADS,
    releases=(Release("andreasmadsen/efficient_mlm_m0.40", LARGE),),
    released=RELEASED,
    license="MIT",
)

MEGATRON_BERT = Family(
    name="megatron_bert",
    model_types=("megatron-bert",),
    stem="MegatronBert",
    paper="Shoeybi et al. 2019",
    keys=with_decoder(changed(BERT_KEYS, vocab_size=29056, **LARGE)),
    encoder_rows=_rows("attention.ln", "ln", "encoder.ln"),
    spec=partial(spec, bert_spec, False),
    prefix="bert.",
    heads=BERT_HEADS,
    releases=(Release("UFNLP/gatortron-base", {"vocab_size": 50176}, "Yang et al. 2022", roles=()),),
)
