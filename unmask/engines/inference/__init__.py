"""Faster modules for inference on a CPU, which replace those of a loaded encoder."""

from unmask.engines.inference.linear import QuantizedLinear, unsupported_reason
from unmask.engines.inference.optimize import optimize_for_inference

__all__ = ["QuantizedLinear", "optimize_for_inference", "unsupported_reason"]
