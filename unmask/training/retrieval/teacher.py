"""The vectors that a student of distillation learns: of a file, or of a teacher that encodes the texts once.

Axes: Q texts.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import whole_file
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.spec import PooledVector
from unmask.tasks.embed import embed
from unmask.text.memory import Rows
from unmask.training.finetune.records import labeled_files, table_rows, value_under
from unmask.training.finetune.settings import DataSettings
from unmask.training.retrieval.records import NEGATIVES
from unmask.training.run.base_model import source
from unmask.training.run.callbacks import Say
from unmask.weights import read_checkpoint
from unmask.weights.build import build
from unmask.weights.read.checkpoint import fingerprint

Vectors = NDArray[np.float32]

TEXTS_AT_ONCE = 2048
"""Texts that the teacher encodes between two writes."""


def read_texts(names: Sequence[str], data: DataSettings, base: Path) -> list[str]:
    """All texts of files, in order: of a row its text, or its query, positive document and negatives.

    Raises:
        InvalidRequest: a file does not exist, or has none of the columns.
        InvalidText: a file is damaged, or a text is not a string.
    """
    return [text for path in labeled_files(names, base) for text in _texts(path, data)]


def _texts(path: Path | Rows, data: DataSettings) -> Iterator[str]:
    negatives = NEGATIVES if data.negative is None else (data.negative,)
    for where, row in table_rows(path, data):
        columns = [data.text] if data.text in row else [data.query, data.positive, *negatives]
        values = [row[column] for column in columns if column in row]
        for value in values or [value_under(data.text, row, where, "text")]:
            for text in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(text, str) or not text.strip():
                    raise InvalidText(f"{where} has a text that is empty or no string; give strings")
                yield text


def stored_vectors(path: Path, texts: int) -> Vectors:
    """The vectors of a .npy file, one for each text; kept on disk.

    Raises:
        InvalidRequest: it cannot be read, or does not hold so many vectors.
    """
    try:
        vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read {path}, which retrieval.teacher_vectors names: {error}") from None
    if vectors.ndim != 2 or len(vectors) != texts or vectors.dtype.kind != "f":
        raise InvalidRequest(
            f"{path} holds {vectors.dtype} numbers of shape {vectors.shape}, and the training data have "
            f"{texts:,} texts; give one vector of floating-point numbers for each, in their order"
        )
    return vectors


def teacher_vectors(name: str, texts: Sequence[str], base: Path, out: Path, say: Say) -> Vectors:
    """The vectors of a teacher's checkpoint, computed once and kept in the run's folder.

    Raises:
        InvalidRequest: the checkpoint gives no vector for a text.
        CheckpointError: it cannot be used.
        OutputError: the disk is full or read-only.
    """
    checkpoint = read_checkpoint(source(name, base))
    if not isinstance(checkpoint.head, PooledVector):
        raise InvalidRequest(
            f"retrieval.teacher is {name}, which does not define one vector of a text; name a sentence "
            "embedder"
        )
    digest = hashlib.sha256()
    for part in (fingerprint(checkpoint, ()), *texts):
        digest.update(part.encode() + b"\0")
    path = out / f"teacher-{digest.hexdigest()[:16]}.npy"
    if path.exists():
        return stored_vectors(path, len(texts))
    say(f"{checkpoint.source.name} encodes {len(texts):,} texts once")
    engine = TorchEngine(build(checkpoint).eval())
    vectors_QE = np.empty((len(texts), checkpoint.head.width(checkpoint.spec)), dtype=np.float32)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        block = texts[start : start + TEXTS_AT_ONCE]
        encodings = checkpoint.tokenizer.encode_batch(
            block, max_tokens=checkpoint.max_tokens, truncation="end"
        )
        vectors_QE[start : start + len(block)] = embed(engine, checkpoint.head, encodings)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(path) as partial, partial.open("wb") as stream:
            np.save(stream, vectors_QE)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    return stored_vectors(path, len(texts))
