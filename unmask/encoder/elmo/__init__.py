"""ELMo (Peters et al. 2018): character-based words, bidirectional LSTMs, a learned mix of layers.

It is not a Transformer and shares no layer with the encoder, so it is a separate package. Names that need
torch are imported when first used, so that a folder is recognized without it.
"""

from typing import TYPE_CHECKING

from unmask.base.optional import lazy_names
from unmask.encoder.elmo.words import character_ids
from unmask.spec.elmo import ElmoSpec

if TYPE_CHECKING:
    from unmask.encoder.elmo.network import Elmo, ElmoStates

__all__ = [
    "Elmo",
    "ElmoSpec",
    "ElmoStates",
    "character_ids",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Elmo": "unmask.encoder.elmo.network",
        "ElmoStates": "unmask.encoder.elmo.network",
    },
)
