"""Objectives of retrievers and rerankers: queries with documents, and what their scores should be."""
