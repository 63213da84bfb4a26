"""Kernels in Triton's language; imported by the kernels that launch them, and only where triton is there."""
