"""Softmax attention by blocks of complete rows."""
