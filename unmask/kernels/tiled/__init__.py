"""Softmax attention in blocks of complete rows."""
