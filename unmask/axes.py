"""The axis letters that end tensor names: ``x_TD`` has tokens first, then the encoder's width.

A module that needs another letter, or one of these with another meaning, says so in the last lines of its
docstring: ``Axes: W words; P pairs of segments.`` A test holds every name to that.
"""

AXES: dict[str, str] = {
    "T": "tokens of a packed batch, all sequences end to end",
    "S": "sequences of a batch; in a map of a head, cells along its side",
    "N": "tokens of one sequence",
    "D": "width of the hidden states",
    "E": "width of the embeddings",
    "H": "attention heads",
    "K": "width of one head",
    "F": "feed-forward width",
    "V": "vocabulary",
    "C": "classes; in a tile of attention, its columns (keys)",
    "R": "rows of a tile of attention (queries)",
    "L": "layers",
    "M": "selected tokens",
    "B": "sequences of equal length, run together; in a profile, bins of distance",
    "X": "classes of keys",
    "O": "distances from query to key, with their sign",
    "P": "rows of the table of relative positions",
    "k": "the strongest keys of a query",
}
