"""What `unmask.load` returns: the public Python API of a loaded model."""
