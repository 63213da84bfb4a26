"""Length scaling: an encoder's time and memory over sequence length, fitted curves, and the longest text."""
