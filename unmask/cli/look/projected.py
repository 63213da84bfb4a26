"""The file that ``unmask geometry --projection`` writes: every token in three dimensions at every level."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unmask.base.files import check_can_write, whole_file
from unmask.errors import InvalidRequest, OutputError

if TYPE_CHECKING:
    from unmask.interpret.geometry import Projection, ReadTexts

SUFFIXES = (".npz", ".json")


def check_projection_file(path: Path) -> None:
    """Refuse a file that could not be written, before the work."""
    if path.suffix not in SUFFIXES:
        raise InvalidRequest(f"--projection is {str(path)!r}; its name must end with {' or '.join(SUFFIXES)}")
    check_can_write(path)


def write_projection(path: Path, made: "Projection", read: "ReadTexts") -> None:
    """Write the points (L + 1, N, 3), the shares of variance (none of UMAP), and of each token its piece, its
    chunk and whether it is special."""
    pieces = np.array([piece for one in read.encodings for piece in one.pieces])
    chunks = np.repeat(np.arange(len(read.encodings)), [len(one) for one in read.encodings])
    explained = np.empty((0, 3)) if made.explained_L3 is None else made.explained_L3
    with whole_file(path) as partial:
        try:
            if path.suffix == ".npz":
                with partial.open("wb") as stream:
                    np.savez(
                        stream,
                        method=np.array(made.method),
                        basis=np.array(made.basis),
                        points=made.points_LN3,
                        explained=explained,
                        piece=pieces,
                        chunk=chunks,
                        special=read.special_T,
                    )
            else:
                described = {
                    "method": made.method,
                    "basis": made.basis,
                    "points": made.points_LN3.tolist(),
                    "explained": explained.tolist(),
                    "piece": pieces.tolist(),
                    "chunk": chunks.tolist(),
                    "special": read.special_T.tolist(),
                }
                partial.write_text(json.dumps(described), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
