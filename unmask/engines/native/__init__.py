"""Layers for inference on a CPU in a library of our own, where it was built and the processor supports it."""
