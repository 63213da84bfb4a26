"""Retrieval on judged queries: test collections, runs, and their figures."""
