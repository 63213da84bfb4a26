"""Local and global layers: attention distance, receptive field and cost."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.experiments.reach import fields
from unmask.explorer.experiments.recorded_text import RecordedText
from unmask.spec import AttentionPattern, FullAttention, SlidingWindow, SlidingWindowGlobal

LENGTHS = (512, 2048, 8192)


@dataclass(frozen=True, eq=False)
class Alternation:
    """Measurements of every layer on one text."""

    radius: tuple[int | None, ...]
    """(L,): window radius of a layer; None for full attention."""
    distance: NDArray[np.float64]
    """(L, H): mean distance of attention in tokens, over queries."""
    even_distance: NDArray[np.float64]
    """(L,): mean distance of uniform attention over the allowed keys: the effect of the pattern alone."""
    beyond: NDArray[np.float64]
    """(L, H): mass on keys beyond the smallest radius of any layer, which no local layer can attend to."""
    field: NDArray[np.int64]
    """(L + 1,): number of tokens that can influence the middle token's state at a level; level 0 is the
    input."""
    lengths: tuple[int, ...]
    pairs: tuple[int, ...]
    """Number of scores of one head, summed over layers, for each length; counted, not measured."""
    pairs_whole: tuple[int, ...]
    """``pairs`` with full attention in every layer."""


def alternation(heard: RecordedText) -> Alternation:
    """Compare local and global layers.

    Beltagy, Peters & Cohan 2020 combine local and global attention in a layer; Warner et al. 2024 alternate
    layers.

    Raises:
        InvalidRequest: a layer has no softmax, or its attention pattern is neither full nor a window.
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
    """Number of pairs of a query and a key within a radius of each other in a text."""
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
                f"layer {layer} has {type(pattern).__name__} attention; this experiment needs windows"
            )
