"""The geometry of layers: intrinsic dimension, isotropy, similarity of layers (CKA) and of their weights,
word senses, the cloud in three dimensions.

`geometry`, `cka` and `project` take arrays from any source; `read_texts` computes them with an encoder.
"""

from unmask.interpret.geometry.cka import Cka, WeightSimilarity, cka, weight_similarity
from unmask.interpret.geometry.layers import geometry
from unmask.interpret.geometry.projection import Projection, SenseCloud, project, sense_cloud
from unmask.interpret.geometry.reading import (
    ReadTexts,
    random_baseline,
    read_texts,
    static_vectors,
    stretches,
)
from unmask.interpret.geometry.values import (
    Estimate,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
)
from unmask.interpret.geometry.word_senses import (
    Null,
    SenseLayer,
    SenseReport,
    SenseSet,
    Sentence,
    StaticSenses,
    read_sense_file,
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
    "StaticSenses",
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
    "static_vectors",
    "stretches",
    "weight_similarity",
    "word_sense_set",
    "word_senses",
]
