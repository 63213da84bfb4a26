"""What an encoder is and how it runs: spec, families, kernels, layers, encoder, weights, heads."""
