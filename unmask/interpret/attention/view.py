"""Exact attention of one text: any rectangle and statistics of every head; no N x N array is ever stored."""

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.base.progress import Watch
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache, Kind
from unmask.interpret.attention.attention_statistics import MAPS, TOP_K, AttentionStatistics
from unmask.interpret.attention.edges import filled, topk
from unmask.interpret.attention.layer_statistics import CLASSES, HeadSummary, LayerStatistics
from unmask.interpret.attention.rectangles import (
    LayerCache,
    Over,
    Pool,
    pooled_rectangle,
    probabilities,
    score_parts,
)
from unmask.interpret.attention.rows import LayerRows
from unmask.kernels import Tile
from unmask.spec.global_tokens import GlobalTokens
from unmask.text import Encoding

Weight = Literal["raw", "norm"]
"""Raw attention, or attention weighted by value norms, see `LayerStatistics`."""

KEPT_STATISTICS = 2
"""How many sizes of statistics a view keeps."""

RELATIONS = CLASSES[:5]
"""Relations of a key to a query: the same token, the previous, the next, the first token of the sequence,
or a special token other than the first. A key may have several relations: to itself, the first token is
both self and first."""


@dataclass(frozen=True)
class TopKeys:
    """The top-k keys of every query of one head, largest first; ties are in text order."""

    keys: NDArray[np.int64]
    """Shape (N, k)."""
    probabilities: NDArray[np.float32]
    """Shape (N, k)."""


class AttentionView:
    """Exact attention of one text, every layer and head.

    Arrays are indexed layer, head, token (L, H, N), with 0 for heads that a layer does not have. Statistics
    come from `AttentionStatistics`, which are measured on first use in the encoder's dtype, but at least
    float32, and accumulated in float64. For linear attention, the numbers are the weights that it implies,
    see `kind`.

    Args:
        encoder: what reads the text.
        encoding: the text.
        global_tokens: which tokens are global in an encoder with global attention; None means those that
            its head was trained with. Their rows are computed as in the encoder, with separate projections
            if it has them.
        watch: called after each layer of the forward pass.
    """

    def __init__(
        self,
        encoder: Encoder,
        encoding: Encoding,
        *,
        global_tokens: GlobalTokens | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.encoding = encoding
        self.cache = ActivationCache.of(encoder, encoding, global_tokens=global_tokens, watch=watch)
        """The activations of the text, from which everything here is computed."""
        self.layer_cache = LayerCache(self.cache)
        """For many rectangles of one layer, in float32; see `probabilities` for exact ones."""
        self._statistics: dict[tuple[int, int], AttentionStatistics] = {}
        self._rows: LayerRows | None = None

    def __len__(self) -> int:
        """N, the number of tokens."""
        return len(self.encoding)

    @property
    def globals_N(self) -> NDArray[np.bool_] | None:
        """Which tokens were global in this run; None in an encoder without global attention."""
        return self.cache.globals_N

    @property
    def layer_count(self) -> int:
        """L."""
        return self.cache.layer_count

    @property
    def head_count(self) -> int:
        """H of the layer with the most heads."""
        return max(self.cache.heads(layer) for layer in range(self.layer_count))

    def kind(self, layer: int) -> Kind:
        """The kind of the numbers of a layer: ``"softmax"`` probabilities, or ``"kernel"`` weights.

        Linear attention has no softmax; it mixes values by ``phi(q_i) phi(k_j)``, which is divided here by
        its sum over keys so that rows sum to 1 (the encoder itself may add its eps to that sum).
        """
        return self.cache.kind(layer)

    def open_statistics(self, *, top_k: int = TOP_K, maps: int = MAPS) -> AttentionStatistics:
        """The statistics of these sizes, as far as they are measured; see `AttentionStatistics.measure`.

        Those of the `KEPT_STATISTICS` sizes that were asked for last are kept.
        """
        sizes = (top_k, maps)
        statistics = self._statistics.pop(sizes, None)
        if statistics is None:
            statistics = AttentionStatistics(self.cache, top_k=top_k, maps=maps)
        recent = [*self._statistics.items()][1 - KEPT_STATISTICS :]
        self._statistics = {**dict(recent), sizes: statistics}
        return statistics

    def statistics(
        self, watch: Watch | None = None, *, top_k: int = TOP_K, maps: int = MAPS
    ) -> AttentionStatistics:
        """Statistics of every head, with all layers measured; cached, and resumed if stopped before.

        Raises:
            Cancelled: ``watch`` stopped the work; finished layers are kept.
            NonFiniteResult: a number is infinite or not a number.
        """
        statistics = self.open_statistics(top_k=top_k, maps=maps)
        if not statistics.ready:
            statistics.measure(watch)
        return statistics

    def probabilities(
        self,
        layer: int,
        head: int,
        rows: slice = slice(None),
        columns: slice = slice(None),
        *,
        weight: Weight = "raw",
    ) -> NDArray[np.float32]:
        """Attention of queries ``rows`` to keys ``columns``, shape (R, C), float32.

        Each row is a softmax over all keys of the text, of which the columns asked for are returned; with
        ``weight="norm"`` a row is its keys' shares in ``sum_j p_ij n_j``. If the layer has been measured,
        only the queries and keys of the rectangle are computed; otherwise complete rows are.

        Raises:
            InvalidRequest: no such layer, head or weight, or a slice with a step.
        """
        self.cache.head(layer, head)
        _check_weight(weight)
        tile = self._tile(rows, columns)
        if tile.first_row == tile.end_row or tile.first_column == tile.end_column:
            shape = (tile.end_row - tile.first_row, tile.end_column - tile.first_column)
            return np.zeros(shape, dtype=np.float32)
        measured = self._measured(layer)
        if measured is not None and self.kind(layer) == "softmax":
            return probabilities(self.cache, measured, layer, head, tile, weighted=weight == "norm")
        return self._from_rows(layer, head, tile, weight)

    def pooled(
        self,
        layer: int | None = None,
        pool: Pool = "mean",
        rows: slice = slice(None),
        columns: slice = slice(None),
        *,
        weight: Weight = "raw",
        without_N: NDArray[np.bool_] | None = None,
        cell: int = 1,
        watch: Watch | None = None,
    ) -> NDArray[np.float32]:
        """The mean or maximum over the heads of a layer, or over all heads, of a rectangle, (R, C), float32.

        Args:
            layer: which; None means all layers.
            pool: ``mean``, whose rows sum to 1 as those of heads do, or ``max``, whose rows do not.
            rows: the queries.
            columns: the keys.
            weight: as in `probabilities`.
            without_N: tokens whose rows and columns are 0; the rest of each head's rows is divided by its
                sum.
            cell: pool squares of ``cell`` x ``cell`` tokens in the same way; R and C then count squares.
            watch: called after each block of rows.

        Raises:
            InvalidRequest: no such layer, pool or weight, or a slice with a step.
            Cancelled: ``watch`` stopped the work.
        """
        if layer is not None:
            self.cache.block(layer)
        _check_weight(weight)
        layers = tuple(range(self.layer_count)) if layer is None else (layer,)
        tile = self._tile(rows, columns)
        return pooled_rectangle(
            self.cache, layers, tile, pool,
            weighted=weight == "norm", without_N=without_N, cell=whole_number("cell", cell, 1), watch=watch,
        )  # fmt: skip

    def score_parts(
        self, layer: int, head: int, rows: slice = slice(None), columns: slice = slice(None)
    ) -> dict[str, NDArray[np.float64]]:
        """The components that sum to the scores of a rectangle, (R, C) each.

        ``content``, and ``content_position`` and ``position_content`` (DeBERTa) or ``bias`` (ALiBi, MPNet).
        Masked keys are included.

        Raises:
            InvalidRequest: no such layer or head, a slice with a step, or linear attention, which has no
                scores.
        """
        self.cache.head(layer, head)
        if self.kind(layer) != "softmax":
            raise InvalidRequest(f"layer {layer} is linear attention, which has no scores to take apart")
        return score_parts(self.cache, layer, head, self._tile(rows, columns))

    def topk(self, layer: int, head: int, k: int = TOP_K) -> TopKeys:
        """The top-k keys of every query (all keys if there are fewer).

        Raises:
            InvalidRequest: there is no such layer or head, or ``k`` is less than 1.
        """
        k = min(whole_number("k", k, 1), len(self))
        self.cache.head(layer, head)
        measured = self._measured(layer)
        if measured is not None and k <= measured.edges_HNk.shape[-1]:
            keys, values = measured.edges_keys_HNk[head, :, :k], measured.edges_HNk[head, :, :k]
            return TopKeys(keys.astype(np.int64), values.copy())
        by_block = []
        for block in self._layer_rows(layer).blocks(head):
            below_HRC = block.p_HRC.log().clamp_(min=-2e29)
            keys_HRk = topk(below_HRC, below_HRC, 1, k)
            values_HRk = block.p_HRC.gather(-1, keys_HRk.clamp_min(0)).masked_fill_(keys_HRk < 0, 0)
            keys_HRk = torch.where(keys_HRk < 0, keys_HRk, keys_HRk + block.first_column)
            by_block.append((filled(keys_HRk, len(self))[0].cpu(), values_HRk[0].float().cpu()))
        return TopKeys(*(torch.cat(parts).numpy() for parts in zip(*by_block, strict=True)))

    @property
    def entropy(self) -> NDArray[np.float32]:
        """Entropy of each query's attention in nats, (L, H, N)."""
        return self._stacked("entropy_HN")

    @property
    def entropy_share(self) -> NDArray[np.float32]:
        """Entropy divided by the log of the keys allowed, (L, H, N); 0 if only one is allowed."""
        return self._stacked("entropy_share_HN")

    @property
    def distance(self) -> NDArray[np.float32]:
        """Mean distance from each query to its keys in tokens, (L, H, N)."""
        return self._stacked("distance_HN")

    @property
    def attention_received(self) -> NDArray[np.float32]:
        """Mean attention each key receives from all queries, (L, H, N); uniform attention gives 1/N.

        This is the sink score of Gu et al. 2025 adapted to attention in both directions: theirs is
        causal and averages over the queries from the key on, see `LayerStatistics.causal_received_HN`.
        """
        return self._stacked("attention_received_HN")

    @property
    def sink_mass(self) -> NDArray[np.float32]:
        """The attention received by the most attended token, (L, H)."""
        return np.asarray(self.attention_received.max(axis=-1))

    def summaries(self, only: int | None = None) -> list[HeadSummary]:
        """One `HeadSummary` per head, layer by layer, or for one layer only, in which case only that layer is
        measured."""
        summaries = []
        statistics = self.statistics() if only is None else self.open_statistics()
        for number in range(self.layer_count) if only is None else (only,):
            layer = statistics.layer(number)
            for head in range(layer.heads):
                relations = layer.classes_HX[head, : len(RELATIONS)]
                summary = HeadSummary(
                    layer=number,
                    head=head,
                    entropy_nats=float(layer.entropy_HN[head].mean(dtype=np.float64)),
                    entropy_share=float(layer.entropy_share_HN[head].mean(dtype=np.float64)),
                    distance_tokens=float(layer.distance_HN[head].mean(dtype=np.float64)),
                    sink_token=int(layer.attention_received_HN[head].argmax()),
                    sink_mass=float(layer.attention_received_HN[head].max()),
                    relation=RELATIONS[int(relations.argmax())],
                    relation_mass=float(relations.max()),
                )
                summaries.append(summary)
        return summaries

    def _measured(self, layer: int) -> LayerStatistics | None:
        every = (statistics.layers[layer] for statistics in self._statistics.values())
        return next((layer_statistics for layer_statistics in every if layer_statistics is not None), None)

    def _layer_rows(self, layer: int) -> LayerRows:
        """Cached for the last layer, because rectangles of one layer are often requested consecutively."""
        if self._rows is None or self._rows.layer != layer:
            self._rows = None
            self._rows = LayerRows(self.cache, layer, exact=True)
        return self._rows

    def _from_rows(self, layer: int, head: int, tile: Tile, weight: Weight) -> NDArray[np.float32]:
        rows, columns = slice(tile.first_row, tile.end_row), (tile.first_column, tile.end_column)
        blocks = self._layer_rows(layer).blocks(head, rows)
        return np.concatenate([block.columns(*columns, weighted=weight == "norm") for block in blocks])

    def _stacked(self, name: str) -> NDArray[np.float32]:
        layers = [layer for layer in self.statistics().layers if layer is not None]
        stacked_LHN = np.zeros((len(layers), self.head_count, len(self)), dtype=np.float32)
        for number, layer in enumerate(layers):
            stacked_LHN[number, : layer.heads] = getattr(layer, name)
        return stacked_LHN

    def _tile(self, rows: slice, columns: slice) -> Tile:
        return Tile(*_bounds(rows, len(self)), *_bounds(columns, len(self)))


def _check_weight(weight: str) -> None:
    if weight not in ("raw", "norm"):
        raise InvalidRequest(f"weight is {weight!r}; it can be raw or norm")


def _bounds(part: slice, length: int) -> tuple[int, int]:
    try:
        start, end, step = part.indices(length)
    except (AttributeError, TypeError):
        raise InvalidRequest(f"{part!r} was given for tokens; give a slice, such as slice(0, 8)") from None
    if step != 1:
        raise InvalidRequest(f"a slice with step {step} was given; only whole stretches can be read")
    return start, max(start, end)


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
