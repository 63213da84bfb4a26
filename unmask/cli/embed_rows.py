"""The two output formats of embeddings, and the fingerprint of a run."""

import hashlib
import io
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.model.weights import Checkpoint
from unmask.text import Encoding, Line


class RowFormat(Enum):
    """Output format of rows."""

    JSONL = ".jsonl"
    """One object per line: source, line, tokens, original_tokens (null if they were not all counted),
    embedding."""
    NUMPY = ".npy"
    """A float32 array (S, E)."""

    def header(self, rows: int, width: int) -> bytes:
        """The bytes before the first row."""
        if self is RowFormat.JSONL:
            return b""
        written = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(written, shape)
        return written.getvalue()

    def rows(
        self,
        lines: Sequence[Line],
        encodings: Sequence[Encoding],
        embeddings_SE: NDArray[np.float32],
    ) -> bytes:
        """The bytes of the given rows."""
        if self is RowFormat.NUMPY:
            return embeddings_SE.astype("<f4").tobytes()
        objects = (
            {
                "source": line.source,
                "line": line.number,
                "tokens": len(encoding),
                "original_tokens": encoding.original_tokens if encoding.counted_whole else None,
                "embedding": row.tolist(),
            }
            for line, encoding, row in zip(lines, encodings, embeddings_SE, strict=True)
        )
        return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects).encode()


def format_of(output: Path | None) -> RowFormat:
    """The format for a file name; JSONL for standard output.

    Raises:
        InvalidRequest: the file name has another extension.
    """
    if output is None:
        return RowFormat.JSONL
    for form in RowFormat:
        if output.suffix == form.value:
            return form
    raise InvalidRequest(f"{output} ends in neither .jsonl nor .npy; name the output with one of them")


def fingerprint(checkpoint: Checkpoint, settings: object) -> str:
    """Digest of the weights and settings of a run, as 64 hexadecimal digits."""
    read = (checkpoint.spec, checkpoint.max_tokens, settings)
    digest = hashlib.sha256(repr(read).encode())
    for path in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    for _, content in sorted(checkpoint.tokenizer.files.items()):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
