"""ELMo (Peters et al. 2018): character-based words, bidirectional LSTMs, a learned mix of layers.

It is not a Transformer and shares no layer with the encoder, so it is a separate package. Names that need
torch are imported when first used, so that a folder is recognized without it.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazy_names
from unmask.model.elmo.spec import ElmoSpec
from unmask.model.elmo.words import character_ids

if TYPE_CHECKING:
    from unmask.model.elmo.files import load_elmo, read_published_elmo, save_elmo
    from unmask.model.elmo.network import Elmo, ElmoStates

__all__ = [
    "Elmo",
    "ElmoSpec",
    "ElmoStates",
    "character_ids",
    "load_elmo",
    "read_published_elmo",
    "save_elmo",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Elmo": "unmask.model.elmo.network",
        "ElmoStates": "unmask.model.elmo.network",
        "load_elmo": "unmask.model.elmo.files",
        "read_published_elmo": "unmask.model.elmo.files",
        "save_elmo": "unmask.model.elmo.files",
    },
)
