"""Attention sinks: attention received, value norms, and the effect of removing the strongest sink."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.recorded_text import RecordedText, record_text
from unmask.text import Encoding


@dataclass(frozen=True, eq=False)
class Sinks:
    """One text with its strongest sink and without it."""

    received: NDArray[np.float64]
    """(L, N): attention that each token receives, mean over queries and heads; a layer's sum is 1."""
    norm_received: NDArray[np.float64]
    """(L, N): the same of each pair's share of lengths, p ||v W_O|| (Kobayashi et al. 2020)."""
    even: float
    """1 / N, the uniform share."""
    sink: int
    """The token that receives the most attention over all layers."""
    value_ratio: NDArray[np.float64]
    """(L, H): ||v W_O|| of the sink over the median of all other tokens: far below 1, attending to it adds
    next to nothing."""
    without: NDArray[np.float64]
    """(L, N - 1): `received` after removing the sink token from the text and running the encoder again."""
    next_sink: int
    """The token that receives most then, counted in the text with its sink."""
    moved: NDArray[np.float64]
    """(N - 1,): how far the last layer's state of each other token moved, ||a - b|| / ||a||."""
    moved_by_other: float
    """The mean of the same when, instead, the token that receives least is taken out."""


def sinks(heard: RecordedText) -> Sinks:
    """Find the strongest sink of a text, weight it by value norms, and remove it.

    Sinks were named by Xiao et al. 2024, in models that see the past alone, where the first token is one.
    Here any token may be: the measure is Clark et al.'s (2019), mean mass received.

    Raises:
        InvalidRequest: fewer than four tokens, or a layer without softmax.
    """
    if len(heard) < 4:
        raise InvalidRequest(f"the text has {len(heard)} tokens; give at least 4 to take one away")
    received = _received(heard, weighted=False)
    order = received.mean(0).argsort()
    sink, least = int(order[-1]), int(order[0])
    ratios = []
    for layer in range(heard.layer_count):
        norms_HN = heard.value_norms(layer).numpy()
        others = np.delete(norms_HN, sink, axis=1)
        ratios.append(norms_HN[:, sink] / np.maximum(np.median(others, axis=1), 1e-300))
    bare = record_text(heard.encoder, without(heard.encoding, sink))
    left = _received(bare, weighted=False)
    found = int(left.mean(0).argmax())
    other = record_text(heard.encoder, without(heard.encoding, least))
    return Sinks(
        received,
        _received(heard, weighted=True),
        1 / len(heard),
        sink,
        np.stack(ratios),
        left,
        found + (found >= sink),
        _moved(heard, bare, sink),
        float(_moved(heard, other, least).mean()),
    )


def without(encoding: Encoding, token: int) -> Encoding:
    """The encoding without one token."""
    return encoding.select(np.arange(len(encoding)) != token)


def _received(heard: RecordedText, *, weighted: bool) -> NDArray[np.float64]:
    rows = []
    for layer in range(heard.layer_count):
        p_HNN = heard.probabilities(layer)
        if weighted:
            p_HNN = p_HNN * heard.value_norms(layer)[:, None, :]
            p_HNN = p_HNN / p_HNN.sum(-1, keepdim=True).clamp_min(1e-300)
        rows.append(p_HNN.mean((0, 1)).numpy())
    return np.stack(rows)


def _moved(heard: RecordedText, bare: RecordedText, token: int) -> NDArray[np.float64]:
    kept = torch.arange(len(heard)) != token
    a_ND, b_ND = heard.states[-1][kept], bare.states[-1]
    moved: NDArray[np.float64] = ((a_ND - b_ND).norm(dim=-1) / a_ND.norm(dim=-1)).numpy()
    return moved
