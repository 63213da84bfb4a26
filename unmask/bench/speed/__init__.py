"""One protocol per file: speed, peers, kernels, accuracy, training."""
