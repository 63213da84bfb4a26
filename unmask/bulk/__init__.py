"""Tasks over many texts by several processes or machines: shards of fixed rows, each computed alone.

Names are imported on first use, because every command with ``--engine`` needs only the options.
"""

from typing import TYPE_CHECKING, Literal

from unmask.base.optional import lazy_names

if TYPE_CHECKING:
    from unmask.bulk.predictor import BatchClassifier, BatchPredictor, BatchTagger
    from unmask.bulk.run import BulkSummary, run_shards
    from unmask.bulk.task import BatchEmbedder, BatchTask, TaskOutput

Engine = Literal["processes", "ray"]
"""What runs the shards: processes of this machine, or actors of Ray."""

ROWS_PER_SHARD = 10_000

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

__getattr__ = lazy_names(
    __name__,
    {
        "unmask.bulk.predictor": ("BatchClassifier", "BatchPredictor", "BatchTagger"),
        "unmask.bulk.task": ("BatchEmbedder", "BatchTask", "TaskOutput"),
        "unmask.bulk.run": ("BulkSummary", "run_shards"),
    },
)
