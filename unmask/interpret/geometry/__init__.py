"""The geometry of layers: intrinsic dimension, isotropy, similarity of layers (CKA) and of their weights,
word senses, the cloud in three dimensions.

`geometry`, `cka` and `project` take arrays from any source; `read_texts` computes them with an encoder.
"""

from unmask.interpret.geometry.cka import Cka, WeightSimilarity, cka, weight_similarity
from unmask.interpret.geometry.layers import geometry
from unmask.interpret.geometry.projection import Projection, project
from unmask.interpret.geometry.reading import ReadTexts, random_baseline, read_texts, stretches
from unmask.interpret.geometry.values import (
    Estimate,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
)
from unmask.interpret.geometry.word_senses import (
    Null,
    SenseCloud,
    SenseLayer,
    SenseReport,
    SenseSet,
    Sentence,
    read_sense_file,
    sense_cloud,
    sense_layers,
    shipped_senses,
    shipped_words,
    word_sense_set,
    word_senses,
)

__all__ = [
    "Cka",
    "Estimate",
    "LayerGeometry",
    "Null",
    "Projection",
    "ReadTexts",
    "ScaleEstimate",
    "SenseCloud",
    "SenseLayer",
    "SenseReport",
    "SenseSet",
    "Sentence",
    "Shuffled",
    "WeightSimilarity",
    "WithoutDirections",
    "cka",
    "geometry",
    "project",
    "random_baseline",
    "read_sense_file",
    "read_texts",
    "sense_cloud",
    "sense_layers",
    "shipped_senses",
    "shipped_words",
    "stretches",
    "weight_similarity",
    "word_sense_set",
    "word_senses",
]
