"""What an encoder learns from text: one small module an objective, for any encoder."""
