"""Maps by one weight, with or without some tokens, as maps between words are made of them."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.attention.pooled import Over, Pool
from unmask.interpret.attention.view import AttentionView, Weight


@dataclass(frozen=True, eq=False)
class ChosenMaps:
    """The maps of a view by one weight. `unmask.interpret.words.words.word_map` reads them."""

    view: AttentionView
    weight: Weight = "raw"
    without_N: NDArray[np.bool_] | None = None
    """Tokens whose rows and columns are 0; the rest of each row is divided by its sum. None: none of them."""
    over: Over | None = None
    """The heads of the layer that is asked for, or all heads, in place of one head."""

    def __len__(self) -> int:
        return len(self.view)

    def probabilities(self, layer: int, head: int, rows: slice = slice(None)) -> NDArray[np.float32]:
        """Rows of one head, or of ``over``, (R, N)."""
        if self.over is not None:
            of, pool = self.over.split("_")
            return self.view.pooled(
                layer if of == "layer" else None, cast(Pool, pool), rows,
                weight=self.weight, without_N=self.without_N,
            )  # fmt: skip
        p_RN = self.view.probabilities(layer, head, rows, weight=self.weight)
        if self.without_N is not None:
            p_RN[self.without_N[rows]] = 0
            p_RN[:, self.without_N] = 0
            p_RN /= np.maximum(p_RN.sum(-1, keepdims=True), np.finfo(p_RN.dtype).tiny)
        return p_RN
