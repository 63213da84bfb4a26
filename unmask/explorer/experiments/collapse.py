"""Rank collapse: how similar the states of a text become with depth, and why."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText
from unmask.interpret.geometry.layers import by_coordinate, mean_cosine

LEFT_OUT = (1, 3)
"""Numbers of coordinates to leave out, those with the largest contribution to the mean cosine first."""


@dataclass(frozen=True, eq=False)
class Collapse:
    """Measurements of every level; level 0 is the input of the first layer. Arrays are (L + 1,) unless
    stated."""

    cosine: NDArray[np.float64]
    """Mean cosine of all pairs of different tokens: 0 if unrelated, 1 if all point in the same direction
    (Ethayarajh 2019)."""
    cosine_left_out: dict[int, NDArray[np.float64]]
    """The mean cosine without the coordinates that contribute most to it (after Timkey & van Schijndel
    2021)."""
    share_of_one: NDArray[np.float64]
    """The largest share of the mean cosine that a single coordinate contributes; 1 / D by chance."""
    width: int
    """D."""
    residual: NDArray[np.float64]
    """||X - mean row of X|| / ||X|| in the Frobenius norm: 0 if all tokens are equal."""
    averaged: NDArray[np.float64]
    """The same residual for the input if layers only averaged it with their attention (mean over heads),
    without values, residual connections and feed-forward networks. Such a network is known to collapse (Dong,
    Cordonnier & Loukas 2021, who use another norm)."""


def collapse(recorded: RecordedText) -> Collapse:
    """Cosines and residuals of a text's states by level.

    Raises:
        InvalidRequest: there are fewer than three tokens, or a layer has no softmax.
    """
    if len(recorded) < 3:
        raise InvalidRequest(f"the text has {len(recorded)} tokens; give at least 3")
    cosines, shares = [], []
    left_out: dict[int, list[float]] = {count: [] for count in LEFT_OUT}
    for state_ND in recorded.states:
        x_ND = state_ND.numpy()
        added_D = by_coordinate(x_ND)
        order_D, total = (-added_D).argsort(), float(added_D.sum())
        cosines.append(total)
        shares.append(float(added_D.max()) / total if total > 0 else 0.0)
        for count, values in left_out.items():
            values.append(mean_cosine(x_ND[:, order_D[min(count, len(order_D) - 1) :]]))
    averaged, y_ND = [_residual(recorded.states[0])], recorded.states[0]
    for layer in range(recorded.layer_count):
        y_ND = recorded.probabilities(layer).mean(0) @ y_ND
        averaged.append(_residual(y_ND))
    return Collapse(
        np.array(cosines),
        {count: np.array(values) for count, values in left_out.items()},
        np.array(shares),
        recorded.states[0].shape[-1],
        np.array([_residual(x_ND) for x_ND in recorded.states]),
        np.array(averaged),
    )


def _residual(x_ND: Tensor) -> float:
    return float((x_ND - x_ND.mean(0)).norm() / x_ND.norm().clamp_min(1e-300))
