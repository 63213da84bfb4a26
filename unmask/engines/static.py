"""The engine of an encoder without layers: rows of its table, and their mean for a text. Free of torch.

The rows of a text are gathered and added by themselves, so that a vector does not depend on the other texts
of its batch. `numpy.add.reduceat` over all rows of a batch takes twenty times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Floats, Layers
from unmask.engines.native.parts import Float32s, Heads, Weights
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec, MultiVector, PooledVector, SparseVector
from unmask.spec.encoder import head_of, require_layers
from unmask.text.batch import PackedBatch, SequenceLayout, check_unpooled

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder

ROWS_AT_ONCE = 1 << 14
"""Rows of one text that are gathered at once, so that memory stays small for a long one."""


class StaticEngine:
    """An `Engine` of a table of vectors, in float32.

    Args:
        spec: of an encoder without layers.
        weights: its table, and the tensors of its output's layers.
        output: what its checkpoint gives.
        unpooled_id: the id of tokens that are left out of a mean; None for none.
    """

    outputs: tuple[type, ...] = (PooledVector,)
    dtype = "float32"
    device = "cpu"

    def __init__(
        self, spec: EncoderSpec, weights: Weights, output: PooledVector | None, unpooled_id: int | None = None
    ) -> None:
        self.spec = spec
        self.heads = Heads(spec, weights, output)
        """What follows the mean."""
        self._table_VD = np.require(weights["embedding.words.weight"], np.float32, ["C", "A"])
        self._unpooled_id = unpooled_id

    @property
    def encoder(self) -> Encoder:
        """None: there is no module.

        Raises:
            InvalidRequest: always.
        """
        require_layers(self.spec, "looking into an encoder, training or exporting it")
        raise AssertionError("a static engine is of an encoder without layers")

    def with_states(self, batch: PackedBatch) -> StaticEngine:
        """See `Engine`; reading a table again costs nothing."""
        return self

    def hidden_states(self, batch: PackedBatch, layers: Layers = "last") -> Floats:
        """The row of each token, (T, D) or (1, T, D); see `Engine`."""
        x_TD = self._table_VD[self._checked(batch.ids_T)]
        return x_TD if layers == "last" else x_TD[None]

    def logits(self, batch: PackedBatch, role: str, tokens: NDArray[np.int64] | None = None) -> Floats:
        """There are no heads; see `Engine`."""
        head_of(self.spec, role)
        raise AssertionError("an encoder without layers has no heads")

    def embed(self, batch: PackedBatch, output: PooledVector, *, skipped: int = 0) -> Float32s:
        """See `Engine`. A text of which every token is left out has a vector of zeros.

        Raises:
            InvalidRequest: the output is not a mean.
        """
        if output.pooling != ("mean",):
            raise InvalidRequest(
                f"pooling is {' and '.join(output.pooling)}, and a static model takes the mean of its "
                "tokens' vectors; leave pooling out"
            )
        check_unpooled(batch.layout, skipped)
        means_SD = self._means(self._checked(batch.ids_T), batch.layout, skipped)
        each = SequenceLayout.of_lengths(np.ones(len(means_SD), np.int64))
        return self.heads.embed(means_SD, each, output)

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Refused; see `Engine`."""
        require_layers(self.spec, "a vector for each token")
        raise AssertionError

    def word_weights(self, batch: PackedBatch, output: SparseVector) -> Iterator[NDArray[np.float32]]:
        """Refused; see `Engine`."""
        require_layers(self.spec, "a weight for each word")
        raise AssertionError

    def static_weights(self) -> NDArray[np.float32]:
        """See `Engine`."""
        return self.heads.static_weights()

    def _checked(self, ids_T: NDArray[np.int64]) -> NDArray[np.int64]:
        outside = (ids_T < 0) | (ids_T >= len(self._table_VD))
        if outside.any():
            raise InvalidRequest(
                f"token id {ids_T[outside][0]} is not in the vocabulary of {len(self._table_VD):,} tokens"
            )
        return ids_T

    def _means(self, ids_T: NDArray[np.int64], layout: SequenceLayout, skipped: int) -> Float32s:
        """The mean of the rows of each text after its first ``skipped`` tokens, (S, D)."""
        means_SD = np.zeros((layout.sequence_count, self.spec.width), np.float32)
        offsets, table_VD = layout.offsets.tolist(), self._table_VD
        for text, (start, end) in enumerate(pairwise(offsets)):
            ids_N = ids_T[start + skipped : end]
            if self._unpooled_id is not None:
                ids_N = ids_N[ids_N != self._unpooled_id]
            if len(ids_N) <= ROWS_AT_ONCE:
                np.add.reduce(table_VD[ids_N], axis=0, out=means_SD[text])
            else:
                for first in range(0, len(ids_N), ROWS_AT_ONCE):
                    means_SD[text] += np.add.reduce(table_VD[ids_N[first : first + ROWS_AT_ONCE]], axis=0)
            means_SD[text] /= max(len(ids_N), 1)
        return means_SD
