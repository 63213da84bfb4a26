"""Encoders as ONNX graphs, for runtimes that know nothing of this package: see `unmask.model.export.onnx`."""
