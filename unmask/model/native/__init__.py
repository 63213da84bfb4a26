"""Layers for inference on a CPU in a library of our own, where it was built and the processor supports it."""

from unmask.model.native.engine import NativeEngine, native_engine, native_reason

__all__ = ["NativeEngine", "native_engine", "native_reason"]
