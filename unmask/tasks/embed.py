"""Sentence embeddings of texts, as the checkpoint defines them; their precision, and their similarity.

Axes: A rows of the first embeddings of a similarity; B rows of the second.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_flag, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest, quoted
from unmask.spec import POOLING_MODES, CheckpointOutput, PooledVector, PoolingMode, UnitLength, UnknownOutput
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.prompts import chosen_prompt, unpooled_tokens
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    head: PooledVector,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncation: Truncation = "error",
    global_tokens: GlobalTokens = "first",
    name: Name = numbered,
) -> Ready[NDArray[np.float32]]:
    """Sentence embeddings of texts, (S, E); arguments as of `unmask.models.model.Model.embed`.

    ``head`` is what `embedding_head` gives.
    """
    before = chosen_prompt(head, prompt, prompt_name, reader.name)
    encodings = reader.tokenized(
        [
            before + text if isinstance(text, str) and text.strip() else text
            for text in several("texts", texts)
        ],
        truncation=truncation,
        name=called(texts, name),
    )
    return of_encodings(
        reader, encodings, head, prompt=before, global_tokens=global_tokens, name=called(texts, name)
    )


def of_encodings(
    reader: Reader,
    encodings: Sequence[Encoding],
    head: PooledVector,
    *,
    prompt: str = "",
    global_tokens: GlobalTokens = "first",
    name: Name = numbered,
) -> Ready[NDArray[np.float32]]:
    """Embeddings of texts that are tokenized already, after the prompt that they begin with."""
    skipped = unpooled_tokens(reader.tokenizer, head, prompt)
    return Ready(
        encodings,
        partial(embed, output=head, skipped=skipped, global_tokens=global_tokens),
        np.asarray,
        ("embed", head, skipped, global_tokens),
        name,
    )


def embedding_head(
    published: CheckpointOutput,
    pooling: PoolingMode | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
) -> PooledVector:
    """How embeddings are computed: what the checkpoint publishes, with the overrides given here.

    Raises:
        InvalidRequest: neither the checkpoint nor the call specifies a pooling.
    """
    if pooling is not None:
        check_choice("pooling", pooling, POOLING_MODES)
    check_flag("normalize", normalize)
    if truncate_dim is not None:
        whole_number("truncate_dim", truncate_dim, 1)
    if isinstance(published, PooledVector):
        unit = published.normalize if normalize is None else normalize
        modes = published.pooling if pooling is None else (pooling,)
        if published.projections and len(modes) != len(published.pooling):
            raise InvalidRequest(
                f"pooling is {pooling}, and the layers after pooling read {len(published.pooling)} "
                "pooled vectors side by side; leave pooling out"
            )
        head = replace(published, pooling=modes, normalize=unit)
        if truncate_dim is None:
            return head
        if normalize is None and unit:  # the whole vector is normalized, and what is cut from it is not
            head = replace(head, projections=(*head.projections, UnitLength()), normalize=False)
        return replace(head, dimensions=truncate_dim)
    if pooling is None:
        reason = "the checkpoint gives no single vector per text"
        reason = published.reason if isinstance(published, UnknownOutput) else reason
        raise InvalidRequest(f"{reason}; name a pooling, for instance mean")
    unit = isinstance(published, UnknownOutput) and published.normalize
    return PooledVector((pooling,), unit if normalize is None else normalize, dimensions=truncate_dim)


def embed(
    engine: Engine,
    output: PooledVector,
    encodings: Sequence[Encoding],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    global_tokens: GlobalTokens = "first",
    skipped: int = 0,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> NDArray[np.float32]:
    """One embedding per text, shape (S, E), float32, in the given order.

    Texts run packed, sorted by length, ``tokens_per_pass`` tokens at a time; the grouping changes only the
    last bits of an embedding. ``global_tokens`` selects the global tokens in an encoder with global
    attention. The first ``skipped`` tokens of each text are not pooled. ``name`` is how error messages name
    the text at an index.

    Raises:
        NonFiniteResult: an embedding contains infinity or NaN; raised after the pass it occurred in.
    """
    embeddings_SE = np.empty((len(encodings), output.width(engine.spec)), dtype=np.float32)
    for chosen, batch in text_batches(engine.spec, encodings, global_tokens, tokens_per_pass, progress):
        e_SE = engine.embed(batch, output, skipped=skipped)
        require_finite(e_SE, chosen, np.arange(len(chosen)), "the embedding", name=name, dtype=engine.dtype)
        embeddings_SE[chosen] = e_SE
    return embeddings_SE


# --- precision

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""``int8`` and ``uint8`` divide each dimension's range into 256 steps. ``binary`` and ``ubinary`` keep the
sign of each number, eight of them in an int8 or uint8."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class EmbedOptions(TypedDict, total=False):
    """The options of `Model.embed` besides its prompt."""

    truncation: Truncation
    pooling: PoolingMode | None
    normalize: bool | None
    truncate_dim: int | None
    precision: Precision
    ranges: NDArray[np.float32] | None
    tokens_per_pass: int
    global_tokens: GlobalTokens
    progress: Progress | None


FEW = 100
"""With fewer embeddings their ranges say little about others."""

STEPS = 255


def quantize(
    embeddings_SE: NDArray[np.float32], precision: Precision, ranges: NDArray[np.float32] | None = None
) -> NDArray[np.float32] | NDArray[np.int8] | NDArray[np.uint8]:
    """Embeddings in a precision, as `sentence_transformers.util.quantize_embeddings` computes them.

    Warns if 8-bit ranges are those of fewer than 100 embeddings.

    Args:
        embeddings_SE: the embeddings.
        precision: see `Precision`.
        ranges: the smallest and the largest value of each dimension, (2, E), for 8-bit integers; None takes
            those of these embeddings. Vectors that are to be compared need the same ranges.

    Raises:
        InvalidRequest: there is no such precision, the ranges do not fit, or they would be those of one
            embedding.
    """
    check_choice("precision", precision, PRECISIONS)
    if ranges is not None and precision not in ("int8", "uint8"):
        raise InvalidRequest(f"ranges were given with the precision {precision}; they are for int8 and uint8")
    match precision:
        case "uint8":
            return _placed(embeddings_SE, precision, ranges).astype(np.uint8)
        case "int8":
            return (_placed(embeddings_SE, precision, ranges) - 128).astype(np.int8)
        case "float32":
            return embeddings_SE
        case "ubinary":
            return _bits(embeddings_SE)
        case "binary":
            return (_bits(embeddings_SE).astype(np.int16) - 128).astype(np.int8)
        case _:
            assert_never(precision)


def _placed(
    embeddings_SE: NDArray[np.float32], precision: Precision, ranges: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Where each number is in the range of its dimension, from 0 to 255."""
    low_E, high_E = _ranges(embeddings_SE, precision, ranges)
    step_E = (high_E - low_E) / STEPS
    step_E = np.where(step_E == 0, 1, step_E)
    placed_SE: NDArray[np.float32] = np.clip(np.floor((embeddings_SE - low_E) / step_E), 0, STEPS)
    return placed_SE


def _bits(embeddings_SE: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.packbits(embeddings_SE > 0, axis=-1)


def quantized_width(width: int, precision: Precision) -> int:
    """The numbers of one embedding in a precision."""
    return -(-width // 8) if precision in ("binary", "ubinary") else width


def _ranges(
    embeddings_SE: NDArray[np.float32], precision: Precision, ranges: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    if ranges is not None:
        bounds_2E = np.asarray(ranges, dtype=np.float32)
        if bounds_2E.shape != (2, embeddings_SE.shape[1]):
            raise InvalidRequest(
                f"ranges have shape {bounds_2E.shape}; give the smallest and the largest value of each of "
                f"{embeddings_SE.shape[1]} dimensions"
            )
        return bounds_2E
    if not len(embeddings_SE):
        return np.zeros((2, embeddings_SE.shape[1]), dtype=np.float32)
    if len(embeddings_SE) == 1:
        raise InvalidRequest(
            f"the ranges of {precision} cannot be those of one embedding; give ranges of representative ones"
        )
    if len(embeddings_SE) < FEW:
        warnings.warn(
            f"the ranges of {precision} are those of {len(embeddings_SE)} embeddings; give ranges of more, "
            "so that vectors can be compared with others",
            UserWarning,
            stacklevel=4,
        )
    return np.stack([embeddings_SE.min(axis=0), embeddings_SE.max(axis=0)])


# --- similarity, with the metrics of `sentence-transformers`

Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
"""The two distances are negated, so that larger always means more similar."""

METRICS: tuple[Metric, ...] = get_args(Metric)


def similarity(a: Any, b: Any, metric: Metric = "cosine") -> NDArray[np.float32]:
    """The similarity of every row of ``a`` with every row of ``b``, (A, B).

    ``a`` and ``b`` are embeddings, (A, E) and (B, E); a single vector counts as one row. The cosine with a
    zero vector is 0.

    Raises:
        InvalidRequest: there is no such metric, or the widths of the arrays differ.
    """
    check_choice("metric", metric, METRICS)
    a_AE, b_BE = _rows("a", a), _rows("b", b)
    if a_AE.shape[1] != b_BE.shape[1]:
        raise InvalidRequest(
            f"a has vectors of {a_AE.shape[1]} numbers and b of {b_BE.shape[1]}; embed both with one model"
        )
    match metric:
        case "cosine":
            return _unit(a_AE) @ _unit(b_BE).T
        case "dot":
            return a_AE @ b_BE.T
        case "euclidean":
            order = 2
        case "manhattan":
            order = 1
        case _:
            assert_never(metric)
    distances_AB = np.empty((len(a_AE), len(b_BE)), dtype=np.float32)
    for row_B, one_E in zip(distances_AB, a_AE, strict=True):
        row_B[:] = np.linalg.norm(b_BE - one_E, ord=order, axis=1)
    return -distances_AB


def _rows(name: str, values: Any) -> NDArray[np.float32]:
    try:
        rows: NDArray[np.float32] | None = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError):
        rows = None
    if rows is None or rows.ndim not in (1, 2) or not np.isfinite(rows).all():
        raise InvalidRequest(
            f"{name} is {quoted(values)}; give texts, or embeddings of shape (texts, numbers)"
        )
    return np.atleast_2d(rows)


def _unit(rows_SE: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths_S1 = np.linalg.norm(rows_SE, axis=1, keepdims=True)
    return np.asarray(rows_SE / np.where(lengths_S1 > 0, lengths_S1, 1), dtype=np.float32)
