"""The relevance of a document for a query, read together by a cross-encoder."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.model.engine import Engine
from unmask.model.spec import PairScore, PooledVector
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.embed import embed
from unmask.tasks.logits import logits
from unmask.tasks.progress import Progress
from unmask.text import Encoding
from unmask.text.tokenizer import numbered

ScoreActivation = Literal["default", "identity", "sigmoid"]
"""What makes a score of a logit: what the checkpoint says, nothing, or a sigmoid."""


def pair_scores(
    engine: Engine,
    output: PairScore,
    encodings: Sequence[Encoding],
    activation: ScoreActivation = "default",
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> NDArray[np.float32]:
    """The score of each pair, (P,), float32 whatever the model computes in, so that few scores are equal.

    Raises:
        NonFiniteResult: a score is infinity or NaN.
    """
    if output.pooling is None:
        found = logits(
            engine, "sequence", encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        ).values
    else:
        pooled = PooledVector(output.pooling, projections=output.projections)
        found = embed(
            engine, pooled, encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        )
    scores_P: NDArray[np.float32] = found[:, 0].astype(np.float32)
    how = output.activation if activation == "default" else activation
    return scores_P if how == "identity" else _sigmoid(scores_P)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without overflow for large negative numbers."""
    small = np.exp(-np.abs(x))
    found: NDArray[np.float32] = np.where(x >= 0, 1, small) / (1 + small)
    return found
