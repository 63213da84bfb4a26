"""ELMo (Peters et al. 2018): character-based words, bidirectional LSTMs, a learned mix of layers.

It is not a Transformer and shares no layer with the encoder, so it is a separate package.
"""

from unmask.model.elmo.files import load_elmo, read_published_elmo, save_elmo
from unmask.model.elmo.network import Elmo, ElmoStates
from unmask.model.elmo.spec import ElmoSpec
from unmask.model.elmo.words import character_ids

__all__ = [
    "Elmo",
    "ElmoSpec",
    "ElmoStates",
    "character_ids",
    "load_elmo",
    "read_published_elmo",
    "save_elmo",
]
