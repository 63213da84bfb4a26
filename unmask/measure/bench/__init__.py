"""One protocol a file: speed, peers, kernels, accuracy."""
