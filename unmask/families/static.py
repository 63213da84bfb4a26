"""Static models: a table with a vector for each token, of whose rows a text's vector is the mean.

Model2Vec (Tulkens and van Dongen 2024) makes them from an encoder; `sentence-transformers` reads them as a
StaticEmbedding, and trains others. Not in `transformers`.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.family import Family, HeadLayout, Shapes
from unmask.spec import Embedding, EncoderSpec
from unmask.spec.config_keys import Arguments, Compat, KeyGroup
from unmask.spec.tensor_map import Copy, Rename

TABLE, SENTENCE_TABLE = "embeddings", "embedding.weight"
"""The name of the table in files of Model2Vec, and in those of `sentence-transformers`."""

OTHER_KEYS = (
    *("apply_pca", "apply_zipf", "base_model_name", "embedding_dim", "embedding_dtype", "hidden_dim"),
    *("max_length", "normalize", "pooling", "seq_length", "sif_coefficient", "tokenizer_name"),
    "vocabulary_quantization",
)
"""Keys of config.json on which no vector of a token depends: how the table was made, and what its tensors
say themselves. The output reads ``normalize``.

``max_length`` (512 if absent) is the number of tokens after which Model2Vec drops the rest of a text, and
more than that times the median length of a piece in characters, unless its caller gives another. Here a text
is read whole, as with ``max_length=None`` there; `sentence-transformers` reads it whole, too.
"""


def _read(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    config.pass_over(*OTHER_KEYS)
    return {}


def _write(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"hidden_dim": encoder.width}


KEYS = (KeyGroup(_read, _write),)

ROWS = (
    Rename(TABLE, "embedding.words.weight"),
    Copy(SENTENCE_TABLE, "embedding.words.weight"),
)


def spec(*, vocabulary: int = 1, width: int = 1) -> EncoderSpec:
    """A table of ``vocabulary`` vectors. A config.json has no sizes; those of the table replace the least."""
    return EncoderSpec(width, Embedding(vocabulary, width), layers=())


class Static(Family):
    """Tensors say all: a folder of StaticEmbedding has no config.json."""

    @property
    def head_layouts(self) -> tuple[HeadLayout, ...]:
        """None: heads read the states of layers."""
        return ()

    def detect_heads(self, encoder: EncoderSpec, shapes: Shapes, config: JsonSettings) -> EncoderSpec:
        """The encoder with the sizes of the table; a file without a table is refused when tensors match."""
        shape = shapes.get(TABLE, shapes.get(SENTENCE_TABLE, ()))
        return spec(vocabulary=shape[0], width=shape[1]) if len(shape) == 2 else encoder


STATIC = Static(
    name="static",
    model_types=("model2vec",),
    stem="Static",
    paper="Tulkens and van Dongen 2024",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="",
    license="MIT",
)
