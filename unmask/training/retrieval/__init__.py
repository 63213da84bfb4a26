"""Training of retrievers and rerankers on queries with documents."""
