"""How alike the layers of an encoder are, and whether its states collapse.

Measured on held-out text without masks, read in windows of the trained length.

Axes: N tokens of a block, W windows, T tokens of all windows, D width; M tokens of which no two
are the same word.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.interpret.geometry.cka import cka
from unmask.interpret.geometry.dimension import two_nn
from unmask.interpret.geometry.layers import mean_cosine
from unmask.text import PackedBatch


def layer_states(encoder: Encoder, batch: PackedBatch) -> list[Tensor]:
    """The input of the first layer and the output of each, (T, D) each."""
    kept: dict[int, Tensor] = {}

    def keep(point: HookPoint, layer: int, x_TD: Tensor) -> None:
        if point in (HookPoint.EMBEDDED, HookPoint.LAYER):
            kept[0 if point is HookPoint.EMBEDDED else layer + 1] = x_TD.detach().clone()

    with torch.inference_mode():
        encoder.encode(batch, hook=keep)
    return [kept[layer] for layer in sorted(kept)]


def figures(states: list[NDArray[np.float32]]) -> dict[str, float]:
    """Figures of the states of every layer, (M, D) each; layer 0 is the input of the first.

    ``cosine@l``: mean cosine of different tokens of layer l (Ethayarajh 2019). ``dimension@l``: intrinsic
    dimension by TwoNN. ``cka@l``: debiased linear CKA of layers l - 1 and l. ``same@l``: mean cosine
    of a token in layers l - 1 and l.
    """
    made = {f"cosine@{layer}": mean_cosine(x_MD) for layer, x_MD in enumerate(states)}
    for layer, x_MD in enumerate(states):
        made[f"dimension@{layer}"] = two_nn(two_nearest(x_MD.astype(np.float64)))
    alike = cka(states).debiased
    for layer in range(1, len(states)):
        x_MD, before_MD = states[layer].astype(np.float64), states[layer - 1].astype(np.float64)
        made[f"cka@{layer}"] = float(alike[layer - 1, layer])
        lengths_M = np.linalg.norm(x_MD, axis=1) * np.linalg.norm(before_MD, axis=1)
        made[f"same@{layer}"] = float(((x_MD * before_MD).sum(1) / lengths_M).mean())
    return made


def two_nearest(x_MD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances to the two nearest other points, (P, 2), of the points that have no equal."""
    gram_MM = x_MD @ x_MD.T
    squares_M = gram_MM.diagonal()
    squared_MM = squares_M[:, None] + squares_M - 2 * gram_MM
    np.fill_diagonal(squared_MM, np.inf)
    nearest_M2 = np.sqrt(np.partition(squared_MM, 1, axis=1)[:, :2].clip(0))
    apart_M = nearest_M2[:, 0] > 1e-5 * np.sqrt(squares_M.mean())
    found: NDArray[np.float64] = nearest_M2[apart_M]
    return found
