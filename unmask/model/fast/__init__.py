"""Faster modules for inference on a CPU, put in place of a loaded encoder's."""

from unmask.model.fast.linear import QuantizedLinear, why_not
from unmask.model.fast.rewrite import rewrite

__all__ = ["QuantizedLinear", "rewrite", "why_not"]
