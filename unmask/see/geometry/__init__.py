"""The geometry of layers: intrinsic dimension, spread, likeness of layers, senses of a word.

`geometry` and `cka` take arrays, of any source; `read_texts` gets them from an encoder.
"""

from unmask.see.geometry.cka import Cka, cka
from unmask.see.geometry.layers import geometry
from unmask.see.geometry.reading import ReadTexts, random_twin, read_texts, stretches
from unmask.see.geometry.sense_sets import (
    SenseSet,
    Sentence,
    read_sense_file,
    sense_set,
    shipped_senses,
    shipped_words,
)
from unmask.see.geometry.senses import Null, SenseLayer, SenseReport, sense_layers, senses
from unmask.see.geometry.values import (
    Estimate,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
)

__all__ = [
    "Cka",
    "Estimate",
    "LayerGeometry",
    "Null",
    "ReadTexts",
    "ScaleEstimate",
    "SenseLayer",
    "SenseReport",
    "SenseSet",
    "Sentence",
    "Shuffled",
    "WithoutDirections",
    "cka",
    "geometry",
    "random_twin",
    "read_sense_file",
    "read_texts",
    "sense_layers",
    "sense_set",
    "senses",
    "shipped_senses",
    "shipped_words",
    "stretches",
]
