"""Queries and keys: from dot products to attention weights, for one head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.explorer.experiments.recorded_text import RecordedText
from unmask.interpret.arguments import one_of


@dataclass(frozen=True, eq=False)
class Handshake:
    """One head on one text; arrays are (N, N), queries by keys, float64."""

    layer: int
    head: int
    head_width: int
    """K; products are divided by its square root (disentangled ones by that of K times the number of
    terms)."""
    products: NDArray[np.float64]
    """q k, after rotary embedding."""
    scores: NDArray[np.float64]
    """Inputs of the softmax: scaled products plus the position bias."""
    allowed: NDArray[np.bool_]
    """Allowed keys of each query."""
    shares: NDArray[np.float64]
    """exp(score) divided by the sum of its row; each row sums to 1."""
    steps: NDArray[np.float64]
    """(N, K): for each query, the K terms of its product with the key that it attends to most."""


def handshake(heard: RecordedText, layer: int, head: int) -> Handshake:
    """Every step of a head's attention (Vaswani et al. 2017), recomputed from its queries and keys.

    Raises:
        InvalidRequest: there is no such layer or head, or the layer has no softmax.
    """
    mixer = heard.mixer(layer)
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    shares = heard.probabilities(layer)[head]
    most_N = shares.argmax(-1)
    steps = heard.queries[layer][:, head] * heard.keys[layer][most_N, head]
    return Handshake(
        layer,
        head,
        mixer.head_width,
        products=heard.products(layer)[head].numpy(),
        scores=heard.scores(layer)[head].numpy(),
        allowed=heard.allowed(layer)[head].numpy(),
        shares=shares.numpy(),
        steps=steps.numpy(),
    )


def clearest_head(heard: RecordedText, layers: Sequence[int] | None = None) -> tuple[int, int]:
    """The layer and head that attend most to single, non-adjacent words, as the first head to show.

    The score of a head is its mean mass on keys that are not special tokens, the query itself or its
    neighbors, times the largest weight among them. The head with the highest score is chosen, from all layers
    or the given ones. This is a choice for display and says nothing about importance.
    """
    special_N = torch.tensor(heard.encoding.special)
    places_N = torch.arange(len(heard))
    content_NN = (~special_N)[None, :] & ((places_N[None, :] - places_N[:, None]).abs() > 1)
    every = range(heard.layer_count) if layers is None else layers
    best, found = -math.inf, (every[0], 0)
    for layer in every:
        p_HNN = heard.probabilities(layer)[:, ~special_N]
        if not p_HNN.numel():
            continue
        mass_H = (p_HNN * content_NN[~special_N]).sum(-1).mean(-1)
        peak_H = (p_HNN * content_NN[~special_N]).amax(-1).mean(-1)
        value, head = (mass_H * peak_H).max(0)
        if float(value) > best:
            best, found = float(value), (layer, int(head))
    return found
