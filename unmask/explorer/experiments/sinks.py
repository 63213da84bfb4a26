"""Attention sinks: attention received, value norms, and the effect of removing the strongest sink."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, record_text
from unmask.text import Encoding


@dataclass(frozen=True, eq=False)
class Sinks:
    """Measurements of a text with its strongest sink and without it."""

    received: NDArray[np.float64]
    """(L, N): attention that each token receives, mean over queries and heads; each layer sums to 1."""
    norm_received: NDArray[np.float64]
    """(L, N): the same for norm-weighted attention, p ||v W_O|| (Kobayashi et al. 2020)."""
    even: float
    """1 / N, the uniform share."""
    sink: int
    """The token that receives the most attention over all layers."""
    value_ratio: NDArray[np.float64]
    """(L, H): ||v W_O|| of the sink divided by the median of all other tokens; if it is far below 1,
    attending to the sink adds almost nothing."""
    without: NDArray[np.float64]
    """(L, N - 1): `received` after removing the sink token from the text and running the encoder again."""
    next_sink: int
    """The token that then receives the most, as an index in the original text."""
    moved: NDArray[np.float64]
    """(N - 1,): relative change of the last layer's state of each other token, ||a - b|| / ||a||."""
    moved_by_other: float
    """The mean of this change if the token that receives the least is removed instead."""


def sinks(recorded: RecordedText) -> Sinks:
    """Find the strongest sink of a text, weight it by value norms, and remove it.

    Xiao et al. 2024 named sinks in causal models, where the first token is one. Here any token can be one;
    the measure is the mean mass received (Clark et al. 2019).

    Raises:
        InvalidRequest: there are fewer than four tokens, or a layer has no softmax.
    """
    if len(recorded) < 4:
        raise InvalidRequest(
            f"the text has {len(recorded)} tokens; give at least 4, so that one can be removed"
        )
    received = _received(recorded, weighted=False)
    order = received.mean(0).argsort()
    sink, least = int(order[-1]), int(order[0])
    ratios = []
    for layer in range(recorded.layer_count):
        norms_HN = recorded.value_norms(layer).numpy()
        others = np.delete(norms_HN, sink, axis=1)
        ratios.append(norms_HN[:, sink] / np.maximum(np.median(others, axis=1), 1e-300))
    bare = record_text(recorded.encoder, without(recorded.encoding, sink))
    received_without = _received(bare, weighted=False)
    strongest = int(received_without.mean(0).argmax())
    other = record_text(recorded.encoder, without(recorded.encoding, least))
    return Sinks(
        received,
        _received(recorded, weighted=True),
        1 / len(recorded),
        sink,
        np.stack(ratios),
        received_without,
        strongest + (strongest >= sink),
        _moved(recorded, bare, sink),
        float(_moved(recorded, other, least).mean()),
    )


def without(encoding: Encoding, token: int) -> Encoding:
    """The encoding without one token."""
    return encoding.select(np.arange(len(encoding)) != token)


def _received(recorded: RecordedText, *, weighted: bool) -> NDArray[np.float64]:
    rows = []
    for layer in range(recorded.layer_count):
        p_HNN = recorded.probabilities(layer)
        if weighted:
            p_HNN = p_HNN * recorded.value_norms(layer)[:, None, :]
            p_HNN = p_HNN / p_HNN.sum(-1, keepdim=True).clamp_min(1e-300)
        rows.append(p_HNN.mean((0, 1)).numpy())
    return np.stack(rows)


def _moved(recorded: RecordedText, bare: RecordedText, token: int) -> NDArray[np.float64]:
    others = torch.arange(len(recorded)) != token
    a_ND, b_ND = recorded.states[-1][others], bare.states[-1]
    return np.asarray(((a_ND - b_ND).norm(dim=-1) / a_ND.norm(dim=-1)).numpy())
