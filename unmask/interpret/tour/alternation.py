"""Local and global layers: attention distance, receptive field and cost."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.reach import fields
from unmask.interpret.tour.recorded_text import RecordedText
from unmask.model.spec import AttentionPattern, FullAttention, SlidingWindow, SlidingWindowGlobal

LENGTHS = (512, 2048, 8192)


@dataclass(frozen=True, eq=False)
class Alternation:
    """Layer by layer on one text."""

    radius: tuple[int | None, ...]
    """(L,): window radius of a layer; None for full attention."""
    distance: NDArray[np.float64]
    """(L, H): mean distance of attention in tokens, over queries."""
    even_distance: NDArray[np.float64]
    """(L,): mean distance of uniform attention over the allowed keys: the effect of the pattern alone."""
    beyond: NDArray[np.float64]
    """(L, H): mass on keys farther than the smallest radius of any layer; what no local layer can read."""
    field: NDArray[np.int64]
    """(L + 1,): tokens that can have reached the middle token's state at a level, level 0 the input."""
    lengths: tuple[int, ...]
    pairs: tuple[int, ...]
    """Scores of one head of every layer together, by length of text: counted."""
    pairs_whole: tuple[int, ...]
    """The same with full attention in every layer."""


def alternation(heard: RecordedText) -> Alternation:
    """Beltagy, Peters & Cohan 2020 mix near and far in a layer; Warner et al. 2024 alternate layers.

    Raises:
        InvalidRequest: a layer without softmax, or an attention pattern that is neither full nor a window.
    """
    radii = [_radius(heard.mixer(layer).pattern, layer) for layer in range(heard.layer_count)]
    nearest = min((radius for radius in radii if radius is not None), default=len(heard))
    count = len(heard)
    places = torch.arange(count, dtype=torch.float64)
    apart_NN = (places[None, :] - places[:, None]).abs()
    distance, even, beyond = [], [], []
    for layer in range(heard.layer_count):
        p_HNN, seen_HNN = heard.probabilities(layer), heard.allowed(layer)
        distance.append((p_HNN * apart_NN).sum(-1).mean(-1).numpy())
        beyond.append((p_HNN * (apart_NN > nearest)).sum(-1).mean(-1).numpy())
        even_HN = (seen_HNN * apart_NN).sum(-1) / seen_HNN.sum(-1)
        even.append(float(even_HN.mean()))
    known = fields(heard.encoder, count)
    return Alternation(
        tuple(radii),
        np.stack(distance),
        np.array(even),
        np.stack(beyond),
        np.array([int(one[count // 2].sum()) for one in known]),
        LENGTHS,
        tuple(sum(pairs(length, radius) for radius in radii) for length in LENGTHS),
        tuple(len(radii) * length**2 for length in LENGTHS),
    )


def pairs(length: int, radius: int | None) -> int:
    """Pairs of query and key within a radius of one another in a text."""
    if radius is None or radius >= length - 1:
        return length**2
    return length * (2 * radius + 1) - radius * (radius + 1)


def _radius(pattern: AttentionPattern, layer: int) -> int | None:
    match pattern:
        case FullAttention():
            return None
        case SlidingWindow(radius, 1) | SlidingWindowGlobal(SlidingWindow(radius, 1)):
            return radius
        case _:
            raise InvalidRequest(
                f"layer {layer} sees {type(pattern).__name__}; this experiment is of windows"
            )
