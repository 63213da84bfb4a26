"""From text to tokens on disk to micro-batches of whole chunks."""

from unmask.training.data.shards import ShardSet
from unmask.training.data.sources import SourceSpec, documents, texts
from unmask.training.data.stream import ChunkStream, held_out
from unmask.training.data.train_tokenizer import sample, train_tokenizer
from unmask.training.data.writing import prepare, write_shards

__all__ = [
    "ChunkStream",
    "ShardSet",
    "SourceSpec",
    "documents",
    "held_out",
    "prepare",
    "sample",
    "texts",
    "train_tokenizer",
    "write_shards",
]
