"""Faster modules for inference on a CPU, which replace those of a loaded encoder."""

from unmask.model.inference.linear import QuantizedLinear, unsupported_reason
from unmask.model.inference.optimize import optimize_for_inference

__all__ = ["QuantizedLinear", "optimize_for_inference", "unsupported_reason"]
