"""The accuracy of number formats: embeddings compared with float32, and the effect on a task."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.bench.benchmark_model import (
    BenchmarkModel,
    ModelInfo,
    ScoredPairs,
    invented_lines,
    lines_of,
    spearman,
    sts_b,
)
from unmask.bench.machine import LeftOut, Machine, sentence_of, this_machine
from unmask.errors import InvalidRequest, UnmaskError
from unmask.models.load import Model, load
from unmask.tasks.progress import Progress


@dataclass(frozen=True)
class Agreement:
    """Agreement of outputs with a reference."""

    largest_difference: float
    cosine_min: float
    """Over rows, which are embeddings of texts or states of tokens."""
    cosine_percentile_1: float
    cosine_mean: float


def agreement(outputs: NDArray[np.float32], reference: NDArray[np.float32]) -> Agreement:
    """Agreement of rows (S, E) with reference rows, computed in float64."""
    left, right = outputs.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return Agreement(
        largest_difference=float(np.abs(left - right).max()),
        cosine_min=float(cosines.min()),
        cosine_percentile_1=float(np.percentile(cosines, 1)),
        cosine_mean=float(cosines.mean()),
    )


@dataclass(frozen=True)
class AccuracyRow:
    """One number format."""

    dtype: str
    agreement: Agreement
    """Agreement of its embeddings with those in float32."""
    sts_b_spearman: float | None
    """Rank correlation of cosines with human similarity scores; None without the data."""


@dataclass(frozen=True)
class AccuracyReport:
    """The result of `measure_accuracy`."""

    protocol: str = field(default="accuracy", init=False)
    measured: ModelInfo
    machine: Machine
    texts: int
    source: str
    """Where the texts come from."""
    rows: tuple[AccuracyRow, ...]
    """The first row is float32, with which the others are compared."""
    left_out: tuple[LeftOut, ...]
    seed: int


def measure_accuracy(
    subject: BenchmarkModel,
    *,
    dtypes: Sequence[str] = ("bfloat16", "float16", "int8"),
    texts: Path | None = None,
    count: int = 1000,
    data: Path | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Embed the same texts in every number format.

    Args:
        subject: the model; random weights say little about accuracy.
        dtypes: number formats to compare with float32.
        texts: a file with one text per line; None uses the sentences of STS-B if ``data`` is given, and
            otherwise invents texts.
        count: use only the first N texts.
        data: the folder of data sets, for STS-B.
        device: a torch device name.
        seed: seed of invented texts.
        progress: called with (formats done, formats in total).

    Raises:
        InvalidRequest: the data are missing, or there is no text.
    """
    pairs = None if data is None else sts_b(data)
    every = ["float32", *(dtype for dtype in dtypes if dtype != "float32")]
    reference = load(subject.folder, device=device)
    chosen, source = _texts(reference, texts, pairs, seed)
    chosen = chosen[:count]
    if not chosen:
        raise InvalidRequest(f"{source} holds no text")
    expected_SE = _embed(reference, subject, chosen)
    rows: list[AccuracyRow] = []
    left_out: list[LeftOut] = []
    for number, dtype in enumerate(every, start=1):
        try:
            model = reference if dtype == "float32" else load(subject.folder, dtype=dtype, device=device)
            found_SE = expected_SE if dtype == "float32" else _embed(model, subject, chosen)
            score = None if pairs is None else _spearman(model, subject, pairs)
            rows.append(AccuracyRow(dtype, agreement(found_SE, expected_SE), score))
        except UnmaskError as error:
            left_out.append(LeftOut(dtype, "", sentence_of(error)))
        if progress is not None:
            progress(number, len(every))
    machine = this_machine(torch.device(device))
    return AccuracyReport(subject.record, machine, len(chosen), source, tuple(rows), tuple(left_out), seed)


def _texts(model: Model, path: Path | None, pairs: ScoredPairs | None, seed: int) -> tuple[list[str], str]:
    if path is not None:
        return lines_of(path), path.name
    if pairs is not None:
        return list(dict.fromkeys((*pairs.left, *pairs.right))), "STS-B"
    return invented_lines(model.tokenizer, seed), "words of the vocabulary"


def _embed(model: Model, subject: BenchmarkModel, texts: Sequence[str]) -> NDArray[np.float32]:
    return model.embed_encodings(model.tokenize(texts, truncation="end"), subject.head)


def _spearman(model: Model, subject: BenchmarkModel, pairs: ScoredPairs) -> float:
    left_SE, right_SE = (
        _embed(model, subject, side).astype(np.float64) for side in (pairs.left, pairs.right)
    )
    lengths = np.linalg.norm(left_SE, axis=1) * np.linalg.norm(right_SE, axis=1)
    return spearman((left_SE * right_SE).sum(1) / lengths, np.array(pairs.scores))
