"""Documents, the index made of them, and searching it."""
