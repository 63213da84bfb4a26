"""Disentangled attention by strips of rows, in plain torch."""
