"""Names of what a retriever's training can be, without torch."""

from typing import Literal

Similarity = Literal["cosine", "dot"]
"""How two vectors are compared."""

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]
"""Which similarities a positive pair competes with: of its query to all documents, of its query to other
queries, of its document to all queries, of its document to documents of other queries."""
