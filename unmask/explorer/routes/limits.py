"""What one answer holds at most."""

MAX_CELLS = 1 << 20
"""Exact values: 1,024 x 1,024, or some rows of a very long text; 4 MiB."""
OVERVIEW_CELLS = 32
"""Cells along the side of a thumbnail."""
MAX_WORDS = 2048
"""Words along the side of a map between words: 16 MiB."""
MAX_EDGES = 1 << 20
"""Edges of all heads of all layers that the page asks for at once: 8 MiB in one answer a layer."""
MAX_LISTED = 100
"""Predictions, or sink tokens, of one answer."""
MAX_DRAWN_CELLS = 1 << 22
"""Probabilities of a tile that is drawn as a short question; of more, other questions go first."""
