"""Tasks over many texts by several processes or machines: shards of fixed rows, each computed alone."""

from unmask.bulk.classifier import BatchClassifier
from unmask.bulk.embedder import BatchEmbedder
from unmask.bulk.run import BulkSummary, run_shards
from unmask.bulk.tagger import BatchTagger
from unmask.bulk.task import BatchTask, TaskOutput

__all__ = [
    "BatchClassifier",
    "BatchEmbedder",
    "BatchTagger",
    "BatchTask",
    "BulkSummary",
    "TaskOutput",
    "run_shards",
]
