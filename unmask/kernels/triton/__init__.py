"""Kernels in Triton; imported by the kernels that launch them, only if triton is installed."""
