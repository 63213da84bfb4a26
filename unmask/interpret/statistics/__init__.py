"""Statistics of every attention head: sinks, head labels, head distances."""
