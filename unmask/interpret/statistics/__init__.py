"""Statistics of every attention head, and what follows from them: sinks, kinds of heads, distances."""
