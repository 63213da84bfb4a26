"""The layers of the encoder, each built from its part of the spec."""
