"""Embedding of many texts by several processes or machines: shards of fixed rows, each computed alone."""

from unmask.bulk.embedder import BatchEmbedder
from unmask.bulk.run import BulkSummary, embed_shards

__all__ = ["BatchEmbedder", "BulkSummary", "embed_shards"]
