"""The encoder: layers, heads, and the points where analyses record tensors."""
