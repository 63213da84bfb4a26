"""The axis letters that end tensor names: ``x_TD`` has tokens first, then the encoder's width.

Every module that handles tensors uses these letters and no others.
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
}
