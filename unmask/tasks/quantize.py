"""Embeddings in fewer bytes: 8-bit integers, or one bit for each number."""

import warnings
from typing import Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""``int8`` and ``uint8`` divide each dimension's range into 256 steps. ``binary`` and ``ubinary`` keep the
sign of each number, eight of them in an int8 or uint8."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

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
