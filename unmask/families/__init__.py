"""One module of declarations per family. To add one, write its module and one line here. Free of torch."""

from collections.abc import Mapping
from typing import Any

from unmask.errors import InvalidRequest, UnknownArchitecture, quoted
from unmask.families.albert import ALBERT
from unmask.families.bert import BERT, ERNIE
from unmask.families.bigbird import BIGBIRD
from unmask.families.deberta import DEBERTA
from unmask.families.deberta_v2 import DEBERTA_V2
from unmask.families.distilbert import DISTILBERT
from unmask.families.electra import ELECTRA
from unmask.families.esm import ESM
from unmask.families.eurobert import EUROBERT
from unmask.families.family import Compat, Family, Published
from unmask.families.gemma3 import GEMMA3
from unmask.families.gte import GTE
from unmask.families.jinabert import JINABERT, JINABERT_CODE
from unmask.families.linear import LINEAR, PERFORMER
from unmask.families.longformer import LONGFORMER
from unmask.families.modernbert import MODERNBERT
from unmask.families.mosaicbert import MOSAICBERT
from unmask.families.mpnet import MPNET
from unmask.families.native import NATIVE
from unmask.families.neobert import NEOBERT
from unmask.families.nomicbert import NOMIC_EXPERTS, NOMICBERT
from unmask.families.prenorm import MEGATRON_BERT, ROBERTA_PRELAYERNORM, XLM_ROBERTA_XL
from unmask.families.qwen3 import QWEN3
from unmask.families.rembert import REMBERT
from unmask.families.roberta import CAMEMBERT, DATA2VEC_TEXT, JINA_V3, ROBERTA, XLM_ROBERTA
from unmask.families.roformer import ROFORMER
from unmask.families.t5 import T5
from unmask.families.ultrabert import ULTRABERT

FAMILIES: tuple[Family, ...] = (
    BERT,
    ERNIE,
    ROBERTA,
    MEGATRON_BERT,
    XLM_ROBERTA,
    CAMEMBERT,
    ALBERT,
    DISTILBERT,
    ELECTRA,
    LONGFORMER,
    MPNET,
    BIGBIRD,
    T5,
    DEBERTA,
    DEBERTA_V2,
    REMBERT,
    ROFORMER,
    XLM_ROBERTA_XL,
    DATA2VEC_TEXT,
    ROBERTA_PRELAYERNORM,
    ESM,
    MOSAICBERT,
    JINABERT,
    JINABERT_CODE,
    NOMICBERT,
    NOMIC_EXPERTS,
    GTE,
    JINA_V3,
    MODERNBERT,
    NEOBERT,
    EUROBERT,
    QWEN3,
    GEMMA3,
    ULTRABERT,
    PERFORMER,
    LINEAR,
    NATIVE,
)
"""Every family, oldest first."""

DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The published checkpoint called "default"."""


def family_of(config: Mapping[str, object]) -> Family:
    """The family whose checkpoints have this config.json: by its ``model_type``, and by
    distinguishing keys if two families share it.

    Raises:
        UnknownArchitecture: no family does.
    """
    model_type = config.get("model_type")
    # Those that ask for more of a config first.
    for family in sorted(FAMILIES, key=lambda it: -it.distinctions):
        if family.describes(config):
            return family
    known = ", ".join(dict.fromkeys(name for family in FAMILIES for name in family.model_types))
    if model_type is None:
        raise UnknownArchitecture(
            "config.json does not say its model_type; add that of its architecture, such as "
            f'"model_type": "bert"; built are: {known}'
        )
    raise UnknownArchitecture(
        f"config.json says model_type is {quoted(model_type)}, which is not built; built are: {known}"
    )


def find_architecture(name: str) -> tuple[Family, Published]:
    """The published checkpoint whose hub id ends in ``name``, in any case, and its family.

    Raises:
        InvalidRequest: there is none; the message lists all.
    """
    known = {
        checkpoint.name.rpartition("/")[2].lower(): (family, checkpoint)
        for family in FAMILIES
        for checkpoint in family.published
    }
    wanted = name.rpartition("/")[2].lower()
    if wanted not in known:
        raise InvalidRequest(f"there is no architecture {quoted(name)}; there are {', '.join(known)}")
    return known[wanted]


def published_config(name: str) -> dict[str, Any]:
    """The config.json keys of a published checkpoint, with its pretraining heads if they are known.

    If not, ``architectures`` names the bare encoder. The vocabulary and padding id are those of its own
    tokenizer; `unmask.weights.write.new_checkpoint.with_tokenizer` adapts them to another.

    Raises:
        InvalidRequest: see `find_architecture`.
    """
    family, published = find_architecture(name)
    return dict(family.write(published.pretraining or published.spec))


__all__ = [
    "DEFAULT_NAME",
    "FAMILIES",
    "Compat",
    "Family",
    "Published",
    "family_of",
    "find_architecture",
    "published_config",
]
