"""From text to tokens on disk to micro-batches of whole chunks."""

from unmask.learn.data.prepare import prepare
from unmask.learn.data.shards import ShardSet
from unmask.learn.data.sources import SourceSpec, documents, texts
from unmask.learn.data.stream import ChunkStream, held_out
from unmask.learn.data.train_tokenizer import sample, train_tokenizer
from unmask.learn.data.writing import write_shards

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
