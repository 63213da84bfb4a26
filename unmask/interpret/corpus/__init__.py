"""Heads over a corpus: their statistics over thousands of texts, and the texts that show what they do."""
