"""What a head looks at, in a word (Clark et al. 2019, Voita et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.statistics.layer_statistics import CLASSES, LayerStatistics

LABELS = ("self", "previous", "next", "offset", "first", "special", "punctuation", "broad", "mixed")
"""What a head can be called: one key's place (the token itself, the one before, the one after, one at another
fixed distance), what its keys are, spread widely, or none of these."""

POSITIONAL_SHARE = 0.9
"""Queries whose strongest key is at one distance, from which a head is positional (Voita et al. 2019)."""

CLASS_MASS = 0.5
"""Mean attention to one class of keys from which a head is named by it."""

BROAD_SHARE = 0.8
"""Mean entropy, as a share of an even spread's, from which a head that no class names is broad."""

_OF_OFFSET = {0: "self", -1: "previous", 1: "next"}


@dataclass(frozen=True)
class HeadLabel:
    """A head's name on one text, and the figures it is by. Another text may give another name."""

    label: str
    """One of `LABELS`."""
    share: float
    """What decided: the share of queries, the class's mass or the entropy's share; of ``mixed``, the largest
    mass, which was too small."""
    offset: int
    """The distance at which most queries have their strongest key: key minus query."""
    offset_share: float
    """How many do, of those that have a key there."""
    confidence: float
    """Mean over queries that are no special tokens of the strongest weight (Voita et al. 2019, who leave out
    the end of the sentence)."""


def label_heads(layer: LayerStatistics, special_N: NDArray[np.bool_]) -> tuple[HeadLabel, ...]:
    """A label for every head of a layer: the first rule that holds.

    1. At least `POSITIONAL_SHARE` of the strongest keys are at one distance: ``self``, ``previous``, ``next``
       or ``offset``.
    2. One class of keys (``other`` left out) gets at least `CLASS_MASS`: the class that gets most.
    3. The entropy is at least `BROAD_SHARE` of an even spread's: ``broad``.
    4. ``mixed``.

    Thresholds of 2 and 3 are ours; Clark et al. name heads by eye. In short texts special tokens and
    punctuation get much of even an even spread, so compare with their share of the tokens.
    """
    return tuple(_label(layer, head, special_N) for head in range(layer.heads))


def _label(layer: LayerStatistics, head: int, special_N: NDArray[np.bool_]) -> HeadLabel:
    offset, share = positional(layer.edges_keys_HNk[head, :, 0])
    mass_X = layer.classes_HX[head, : CLASSES.index("other")]
    entropy = float(layer.entropy_share_HN[head].mean())
    most = int(mass_X.argmax())
    if share >= POSITIONAL_SHARE and len(layer) > 1:
        label, decided = _OF_OFFSET.get(offset, "offset"), share
    elif mass_X[most] >= CLASS_MASS:
        label, decided = CLASSES[most], float(mass_X[most])
    elif entropy >= BROAD_SHARE:
        label, decided = "broad", entropy
    else:
        label, decided = "mixed", float(mass_X[most])
    counted_N = ~special_N if not special_N.all() else np.ones_like(special_N)
    confidence = float(layer.edges_HNk[head, counted_N, 0].mean())
    return HeadLabel(label, decided, offset, share, confidence)


def positional(strongest_N: NDArray[np.int32] | Sequence[int]) -> tuple[int, float]:
    """The commonest distance from a query to its strongest key, and the share of queries that have it.

    The share is of the queries for which there is a token at that distance, if they are at least half of all:
    the first token has none before it.
    """
    keys_N = np.asarray(strongest_N, dtype=np.int64)
    length = len(keys_N)
    offsets, counts = np.unique(keys_N - np.arange(length), return_counts=True)
    possible = np.maximum(length - np.abs(offsets), (length + 1) // 2)
    shares = counts / possible
    best = int(shares.argmax())
    return int(offsets[best]), float(shares[best])
