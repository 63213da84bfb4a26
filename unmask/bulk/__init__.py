"""Tasks over many texts by several processes or machines: shards of fixed rows, each computed alone.

Names are imported on first use, because every command with ``--engine`` needs only the options.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from unmask.bulk.predictor import BatchClassifier, BatchPredictor, BatchTagger
    from unmask.bulk.run import BulkSummary, run_shards
    from unmask.bulk.task import BatchEmbedder, BatchTask, TaskOutput

Engine = Literal["processes", "ray"]
"""What runs the shards: processes of this machine, or actors of Ray."""

ROWS_PER_SHARD = 10_000

_HOMES = {
    "BatchClassifier": "predictor",
    "BatchEmbedder": "task",
    "BatchPredictor": "predictor",
    "BatchTagger": "predictor",
    "BatchTask": "task",
    "BulkSummary": "run",
    "TaskOutput": "task",
    "run_shards": "run",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask.bulk' has no attribute {name!r}")
    return getattr(import_module(f"unmask.bulk.{_HOMES[name]}"), name)
