"""Encoders as ONNX graphs, for other runtimes: see `unmask.engines.export.onnx`."""
