"""Attention of one text: complete rows, any rectangle, its strongest edges, and two texts compared."""
