"""A checkpoint found, verified, read and matched tensor by tensor, and the encoder that is built from it."""
