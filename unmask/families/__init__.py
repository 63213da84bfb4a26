"""One module of declarations per family. To add one, write its module and one line here. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import InvalidRequest, UnknownArchitecture, quoted
from unmask.families.albert import ALBERT
from unmask.families.bert import BERT, ERNIE
from unmask.families.bigbird import BIGBIRD
from unmask.families.convbert import CONVBERT
from unmask.families.deberta import DEBERTA
from unmask.families.deberta_v2 import DEBERTA_V2
from unmask.families.distilbert import DISTILBERT
from unmask.families.electra import ELECTRA
from unmask.families.embedding_gemma2 import EMBEDDING_GEMMA2
from unmask.families.esm import ESM
from unmask.families.esmc import ESMC
from unmask.families.eurobert import EUROBERT
from unmask.families.family import Compat, Family, Published
from unmask.families.gemma3 import GEMMA3
from unmask.families.gte import GTE
from unmask.families.jinabert import JINABERT, JINABERT_CODE
from unmask.families.linear import LINEAR, PERFORMER
from unmask.families.longformer import LONGFORMER
from unmask.families.mobilebert import MOBILEBERT
from unmask.families.modernbert import MODERNBERT
from unmask.families.mosaicbert import MOSAICBERT
from unmask.families.mpnet import MPNET
from unmask.families.native import NATIVE
from unmask.families.neobert import NEOBERT
from unmask.families.nomicbert import NOMIC_EXPERTS, NOMICBERT
from unmask.families.prenorm import MEGATRON_BERT, ROBERTA_PRELAYERNORM, XLM_ROBERTA_XL
from unmask.families.privacy_filter import PRIVACY_FILTER
from unmask.families.qwen3 import QWEN3
from unmask.families.rembert import REMBERT
from unmask.families.roberta import CAMEMBERT, DATA2VEC_TEXT, JINA_V3, ROBERTA, XLM_ROBERTA
from unmask.families.roformer import ROFORMER
from unmask.families.static import STATIC
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
    MOBILEBERT,
    CONVBERT,
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
    ESMC,
    EUROBERT,
    QWEN3,
    GEMMA3,
    ULTRABERT,
    PRIVACY_FILTER,
    EMBEDDING_GEMMA2,
    STATIC,
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


@dataclass(frozen=True)
class Pretraining:
    """The objective of a published checkpoint and how its tokens were masked; its spec says neither."""

    objective: str
    masking: str


_BERT = "80 % [MASK], 10 % random, 10 % kept"

PRETRAINING: dict[str, Pretraining] = {
    "google-bert/": Pretraining(
        "masked language modeling, next sentence prediction", f"15 % ({_BERT}), in ten static ways"
    ),
    "FacebookAI/roberta": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), drawn anew for every pass"
    ),
    "albert/": Pretraining(
        "masked language modeling, sentence order prediction", f"15 % ({_BERT}), n-grams of at most 3 words"
    ),
    "google/electra-small-discriminator": Pretraining(
        "replaced token detection", "15 %, replaced by a generator"
    ),
    "google/electra-base-discriminator": Pretraining(
        "replaced token detection", "15 %, replaced by a generator"
    ),
    "google/electra-large-discriminator": Pretraining(
        "replaced token detection", "25 %, replaced by a generator"
    ),
    "distilbert/distilbert-base-uncased": Pretraining(
        "distillation from BERT, masked language modeling", f"15 % ({_BERT}), drawn anew for every pass"
    ),
    "allenai/longformer": Pretraining("masked language modeling, begun with RoBERTa", f"15 % ({_BERT})"),
    "google/bigbird-roberta": Pretraining("masked language modeling", f"15 % of words ({_BERT})"),
    "microsoft/deberta-base": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-large": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-v2": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-v3": Pretraining(
        "replaced token detection", "replaced by a generator, which reads [MASK] only"
    ),
    "microsoft/mdeberta-v3": Pretraining(
        "replaced token detection", "replaced by a generator, which reads [MASK] only"
    ),
    "facebook/esm": Pretraining("masked language modeling", f"15 % ({_BERT})"),
    "mosaicml/": Pretraining("masked language modeling", f"30 % ({_BERT})"),
    "answerdotai/ModernBERT": Pretraining("masked language modeling", f"30 % ({_BERT})"),
    "jhu-clsp/ettin-encoder": Pretraining("masked language modeling", "30 %, 15 % in the decay phase"),
    "chandar-lab/NeoBERT": Pretraining("masked language modeling", "20 % (100 % [MASK])"),
    "unmask-mini": Pretraining("masked language modeling", "30 % at first, 15 % at last"),
}
"""By the beginning of the checkpoint's name. Sources: `recipes/*/published*.toml`, which follow the authors'
papers and code, and the papers of ELECTRA, NeoBERT, Ettin and ESM."""


def find_pretraining(name: str) -> Pretraining | None:
    """How a published checkpoint was pretrained; None if it is not recorded here."""
    return next((pretraining for start, pretraining in PRETRAINING.items() if name.startswith(start)), None)


__all__ = [
    "DEFAULT_NAME",
    "FAMILIES",
    "Compat",
    "Family",
    "Pretraining",
    "Published",
    "family_of",
    "find_architecture",
    "find_pretraining",
    "published_config",
]
