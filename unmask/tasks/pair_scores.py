"""The relevance of a document for a query, read together by a cross-encoder."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest
from unmask.spec import PairScore, PooledVector
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite
from unmask.tasks.embed import embed
from unmask.tasks.logits import logits
from unmask.tasks.reader import Name, Reader, Ready, several
from unmask.text import Encoding, PackedBatch, Truncation
from unmask.text.batch import query_places
from unmask.text.tokenizer import numbered

ScoreActivation = Literal["default", "identity", "sigmoid"]
"""The function from a logit to a score: that of the checkpoint, none, or a sigmoid."""


class ScoreOptions(TypedDict, total=False):
    """The options of `Model.score_pairs`."""

    activation: ScoreActivation
    truncation: Truncation
    tokens_per_pass: int
    progress: Progress | None


def prepare(
    reader: Reader,
    queries: str | Sequence[str],
    documents: str | Sequence[str],
    *,
    activation: ScoreActivation = "default",
    truncation: Truncation = "error",
    document_name: Name | None = None,
) -> Ready[NDArray[np.float32]]:
    """The score of each pair, (P,); arguments as of `unmask.models.model.Model.score_pairs`.

    ``document_name`` is how error messages name the document at an index.
    """
    output = reader.output
    if not isinstance(output, PairScore) or output.labels != 1:
        raise InvalidRequest(f"{reader.name} does not score pairs by one number; use a cross-encoder")
    check_choice("activation", activation, get_args(ScoreActivation))
    check_choice("truncation", truncation, get_args(Truncation))
    texts = several("documents", documents)
    one_query, one_document = isinstance(queries, str), isinstance(documents, str)
    pairs: Any = [queries] * len(texts) if one_query else several("queries", queries)
    encodings = reader.tokenizer.encode_batch(
        pairs,
        texts,
        max_tokens=reader.max_tokens,
        truncation=truncation,
        name=lambda index: "the query" if one_query else f"query {index + 1}",
        pair_name=document_name
        or (lambda index: "the document" if one_document else f"document {index + 1}"),
    )
    return Ready(
        encodings,
        partial(pair_scores, output=output, activation=activation),
        np.asarray,
        ("pair_scores", activation),
        lambda index: f"pair {index + 1}",
        # Documents of one query share its states, which are no other text's.
        reads_last_states=not output.shared_query,
    )


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

    A checkpoint with a shared query computes each query once for all of its documents in a pass; see
    `PairScore.shared_query`.

    Raises:
        NonFiniteResult: a score is infinity or NaN.
    """
    if output.shared_query:
        logits_PC = _with_shared_queries(
            engine, output, encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        )
    elif output.pooling is None:
        logits_PC = logits(
            engine, "sequence", encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        ).values
    else:
        logits_PC = embed(
            engine, _pooled(output), encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        )
    scores_P: NDArray[np.float32] = logits_PC[:, 0].astype(np.float32)
    return activated(scores_P, output.activation if activation == "default" else activation)


def activated(
    logits_P: NDArray[np.float32], activation: Literal["identity", "sigmoid"]
) -> NDArray[np.float32]:
    """Scores of logits, (P,), for display: rank by logits, since a sigmoid is 1 for all beyond 17."""
    return logits_P if activation == "identity" else _sigmoid(logits_P)


def _pooled(output: PairScore) -> PooledVector:
    assert output.pooling is not None
    return PooledVector(output.pooling, projections=output.projections)


def _with_shared_queries(
    engine: Engine,
    output: PairScore,
    encodings: Sequence[Encoding],
    *,
    tokens_per_pass: int,
    progress: Progress | None,
    name: Callable[[int], str],
) -> Floats:
    """Logits, (P, 1); each query is encoded once for its documents of a pass."""
    queries = [query_places(encoding) for encoding in encodings]
    logits_PC: Floats = np.empty((len(encodings), output.labels), dtype=np.float32)
    done = 0
    for chosen in _passes(encodings, queries, tokens_per_pass):
        batch = PackedBatch.of_ids(
            [encodings[index].ids for index in chosen],
            [encodings[index].token_type_ids for index in chosen],
            queries=[queries[index] for index in chosen],
        )
        if output.pooling is None:
            values = engine.logits(batch, "sequence")
        else:
            values = engine.embed(batch, _pooled(output))
        rows = np.arange(len(chosen))
        require_finite(values, chosen, rows, "the score", name=name, dtype=engine.dtype)
        logits_PC[chosen] = values
        done += len(chosen)
        if progress is not None:
            progress(done, len(encodings))
    return logits_PC


def _passes(
    encodings: Sequence[Encoding], queries: Sequence[range], tokens_per_pass: int
) -> Iterator[NDArray[np.int64]]:
    """Pairs of equal queries together, by length; a query counts once in a pass, as it is computed."""
    query_ids = [
        encoding.ids[: query.stop].tobytes() for encoding, query in zip(encodings, queries, strict=True)
    ]
    chosen: list[int] = []
    tokens, last = 0, None
    for index in sorted(range(len(encodings)), key=lambda index: (query_ids[index], len(encodings[index]))):
        new_tokens = len(encodings[index]) - len(queries[index])
        new = new_tokens if query_ids[index] == last else len(encodings[index])
        if chosen and tokens + new > tokens_per_pass:
            yield np.array(chosen)
            chosen, tokens, new = [], 0, len(encodings[index])
        chosen.append(index)
        tokens, last = tokens + new, query_ids[index]
    if chosen:
        yield np.array(chosen)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without overflow for large negative numbers."""
    small = np.exp(-np.abs(x))
    result: NDArray[np.float32] = np.where(x >= 0, 1, small) / (1 + small)
    return result
