"""Tasks over many texts by several processes or machines: shards of fixed rows, each computed alone."""

from unmask.bulk.predictor import BatchClassifier, BatchPredictor, BatchTagger
from unmask.bulk.run import BulkSummary, run_shards
from unmask.bulk.task import BatchEmbedder, BatchTask, TaskOutput

__all__ = [
    "BatchClassifier",
    "BatchEmbedder",
    "BatchPredictor",
    "BatchTagger",
    "BatchTask",
    "BulkSummary",
    "TaskOutput",
    "run_shards",
]
