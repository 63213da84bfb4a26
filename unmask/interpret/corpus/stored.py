"""Results over a corpus as a file: a checksum, a key and the arrays. Whatever is not whole is not used."""

import hashlib
import json
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from unmask.base.files import unwritable, whole_file
from unmask.interpret.attention.layer_statistics import CLASSES
from unmask.interpret.attention.taxonomy import LABELS
from unmask.interpret.corpus.patterns import PATTERNS
from unmask.interpret.corpus.statistics import HeadTotals

MAGIC = b"unmask corpus 1\n"
"""The number changes when the same texts would give other numbers, or other arrays."""

FORMAT = json.dumps([PATTERNS, CLASSES, LABELS])
"""What the axes of the arrays mean."""


def cache_file(folder: Path, identity: str, corpus_sha256: str) -> Path:
    """The file for a model and a corpus. Its folder is made if it is missing.

    Raises:
        OutputError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder / f"{hashlib.sha256(f'{identity} {corpus_sha256}'.encode()).hexdigest()[:32]}.heads"


def write_totals(path: Path, key: str, totals: HeadTotals) -> None:
    """Write them; the file appears whole.

    Raises:
        OutputError: the disk is full or read-only.
    """
    stream = BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in vars(totals).items()}
    np.savez(stream, **arrays)
    head = json.dumps([key, FORMAT]).encode() + b"\n"
    body = head + stream.getvalue()
    with whole_file(path) as partial:
        partial.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)


def read_totals(path: Path, key: str, like: HeadTotals) -> HeadTotals | None:
    """The totals in a file, or None where there are none of this key and shape, or the file is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + 32
    body = data[start:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    head, _, arrays = body.partition(b"\n")
    if json.loads(head) != [key, FORMAT]:
        return None
    with np.load(BytesIO(arrays), allow_pickle=False) as stored:
        values = {field.name: stored[field.name] for field in fields(like)}
    for field in fields(like):
        wanted = np.asarray(getattr(like, field.name))
        if values[field.name].shape != wanted.shape or values[field.name].dtype != wanted.dtype:
            return None
    texts, queries = int(values.pop("texts")), int(values.pop("queries"))
    return HeadTotals(texts=texts, queries=queries, **values)
