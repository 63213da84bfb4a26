"""Labels of attention heads (Clark et al. 2019, Voita et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.attention.layer_statistics import CLASSES, LayerStatistics

LABELS = ("self", "previous", "next", "offset", "first", "special", "punctuation", "diffuse", "mixed")
"""Labels of heads: by the relative position of the top key (the token itself, the previous, the next, or one
at another fixed distance), by the class of the keys, diffuse, or none of these."""

POSITIONAL_SHARE = 0.9
"""Minimum share of queries whose top key is at one distance, for a positional head (Voita et al. 2019)."""

CLASS_MASS = 0.5
"""Minimum mean attention to one class of keys, for a head to be labeled with it."""

DIFFUSE_SHARE = 0.8
"""Minimum mean entropy, as a share of the maximum, for a head without a class label to be diffuse."""

_OF_OFFSET = {0: "self", -1: "previous", 1: "next"}


@dataclass(frozen=True)
class HeadLabel:
    """The label of a head on one text, with the values behind it. Another text may give another label."""

    label: str
    """One of `LABELS`."""
    share: float
    """The deciding value: the share of queries, the mass of the class or the entropy share; for ``mixed``,
    the largest mass, which was below the threshold."""
    offset: int
    """The most frequent distance of the top key: key minus query."""
    offset_share: float
    """Share of queries with that distance, among those that have a key there."""
    confidence: float
    """Mean of the largest weight over queries that are not special tokens (Voita et al. 2019, who leave out
    the end of the sentence)."""


def label_heads(layer: LayerStatistics, special_N: NDArray[np.bool_]) -> tuple[HeadLabel, ...]:
    """A label for every head of a layer: the first rule that holds.

    1. At least `POSITIONAL_SHARE` of the top keys are at one distance: ``self``, ``previous``, ``next``
       or ``offset``.
    2. One class of keys (except ``other``) gets at least `CLASS_MASS`: the class with the most.
    3. The entropy is at least `DIFFUSE_SHARE` of the maximum: ``diffuse``.
    4. ``mixed``.

    The thresholds of 2 and 3 are ours; Clark et al. label heads by inspection. In short texts, special tokens
    and punctuation receive much of even uniform attention, so compare with their share of the tokens.
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
    elif entropy >= DIFFUSE_SHARE:
        label, decided = "diffuse", entropy
    else:
        label, decided = "mixed", float(mass_X[most])
    counted_N = ~special_N if not special_N.all() else np.ones_like(special_N)
    confidence = float(layer.edges_HNk[head, counted_N, 0].mean())
    return HeadLabel(label, decided, offset, share, confidence)


def positional(strongest_N: NDArray[np.int32] | Sequence[int]) -> tuple[int, float]:
    """The most frequent distance from a query to its top key, and the share of queries that have it.

    The share is relative to the queries that have a token at that distance, if these are at least half of
    all: the first token, for example, has no previous token.
    """
    keys_N = np.asarray(strongest_N, dtype=np.int64)
    length = len(keys_N)
    offsets, counts = np.unique(keys_N - np.arange(length), return_counts=True)
    possible = np.maximum(length - np.abs(offsets), (length + 1) // 2)
    shares = counts / possible
    best = int(shares.argmax())
    return int(offsets[best]), float(shares[best])
