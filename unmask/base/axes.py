"""The axis letters at the end of tensor names: ``x_TD`` has tokens first, then the encoder's width.

A module that uses another letter, or one of these with another meaning, declares it in the last lines of its
docstring: ``Axes: W words; P pairs of sentences.`` A test checks every name.
"""

AXES: dict[str, str] = {
    "T": "tokens of a packed batch, all sequences end to end",
    "S": "sequences of a batch; in a map of a head, cells per side",
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
    "B": "sequences of equal length in one batch; in a profile, bins of distance",
    "X": "classes of keys",
    "O": "signed distances from query to key",
    "P": "rows of the table of relative positions",
    "k": "the top-k keys of a query",
}
