"""Disentangled attention in strips of rows, in plain torch."""
