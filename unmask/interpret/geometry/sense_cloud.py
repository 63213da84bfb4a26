"""The occurrences of one word in three dimensions, level by level: its senses drifting apart."""

from dataclasses import dataclass

import numpy as np

from unmask.encoder.elmo import Elmo
from unmask.encoder.elmo.tokenizer import WordTokenizer
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.geometry.projection import Basis, Method, Projection, project
from unmask.interpret.geometry.values import FloatArray
from unmask.interpret.geometry.word_sense_sets import SenseSet
from unmask.interpret.geometry.word_senses import encode_sentences, occurrence_states
from unmask.interpret.watch import Watch, unwatched
from unmask.text import Tokenizer


@dataclass(frozen=True, eq=False)
class SenseCloud:
    """The occurrences of a word as points, in the order of the sentences of the set."""

    given: SenseSet
    projection: Projection


def sense_cloud(
    encoder: Encoder | Elmo,
    tokenizer: Tokenizer | WordTokenizer,
    given: SenseSet,
    *,
    method: Method = "pca",
    basis: Basis = "shared",
    max_tokens: int | None = None,
    seed: int = 0,
    watch: Watch = unwatched,
) -> SenseCloud:
    """The vectors of a word across sentences, projected together; the senses do not influence the directions.

    The vector of an occurrence is that of `word_senses`, divided by its norm: distances in the cloud then are
    those of the cosines that `word_senses` compares, and one unit means the same at every level. A basis
    fitted to the senses would separate so few points by any labels.

    Args:
        encoder: the encoder, or an ELMo.
        tokenizer: its tokenizer.
        given: sentences and senses, see `shipped_senses` and `read_sense_file`.
        method: see `project`.
        basis: see `project`.
        max_tokens: maximum length of the model; longer sentences raise an error.
        seed: random seed of UMAP.
        watch: called with the progress of reading and projecting.

    Raises:
        TextError: a sentence cannot be read.
        InvalidRequest: the word has no token in a sentence, or see `project`.
    """
    encodings = encode_sentences(tokenizer, given, max_tokens)
    vectors = occurrence_states(encoder, encodings, given, watch=watch)
    directions = [_directions(x_MD, layer) for layer, x_MD in enumerate(vectors)]
    return SenseCloud(given, project(directions, method=method, basis=basis, seed=seed, watch=watch))


def _directions(x_MD: FloatArray, layer: int) -> FloatArray:
    norm_M1 = np.linalg.norm(x_MD, axis=1, keepdims=True)
    if not norm_M1.all():
        raise InvalidRequest(f"in layer {layer} an occurrence has the zero vector, which has no direction")
    unit_MD: FloatArray = x_MD / norm_M1
    return unit_MD
