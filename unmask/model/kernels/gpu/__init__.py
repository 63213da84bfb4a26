"""Kernels that run on a GPU alone."""
