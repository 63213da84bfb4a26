"""Kernels that run only on a GPU."""
