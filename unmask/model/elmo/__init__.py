"""ELMo (Peters et al. 2018), the precursor: words from characters, two directions of LSTMs, a learned mix.

It is no Transformer and shares no layer with one, so it stands by itself beside the encoder.
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
