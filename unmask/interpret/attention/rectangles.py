"""Any rectangle of any head: exactly, or fast, from the cached queries and keys of the last layer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.interpret.activation_cache import ActivationCache, Projected
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.attention.rows import LayerRows, cells_at_once, out_factors, value_norms, with_tables
from unmask.kernels import AttentionBias, MaskContext, Tile
from unmask.kernels.tile import key_counts, scores
from unmask.spec import AttentionPattern, FullAttention
from unmask.spec.attention import simplify


@dataclass(frozen=True, eq=False)
class _Rectangle:
    """Queries and keys of one head on the sides of a rectangle, in float64."""

    tile: Tile
    q_RK: Tensor
    k_CK: Tensor
    v_CK: Tensor
    pattern: AttentionPattern
    bias: AttentionBias
    """Of the one head."""


def probabilities(
    cache: ActivationCache,
    measured: LayerStatistics,
    layer: int,
    head: int,
    tile: Tile,
    *,
    weighted: bool = False,
) -> NDArray[np.float32]:
    """Attention of one rectangle of a softmax layer, (R, C), from what is known of its rows.

    Args:
        cache: the activation cache of the text.
        measured: of that layer: the logarithms of rows' sums are taken from it.
        layer: which.
        head: which.
        tile: the rectangle.
        weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``.
    """
    lse_R = torch.from_numpy(measured.lse_HN[head, tile.first_row : tile.end_row])
    p_RC = _weights(
        cache, (layer, head), _rectangle_of(cache, layer, head, tile, of_globals=False), lse_R, weighted
    )
    marks = cache.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        of_globals = _rectangle_of(cache, layer, head, tile, of_globals=True)
        if of_globals is not None:
            global_RC = _weights(cache, (layer, head), of_globals, lse_R, weighted)
            p_RC = torch.where(torch.from_numpy(marks[tile.first_row : tile.end_row, None]), global_RC, p_RC)
    if weighted:
        sums_R = torch.from_numpy(measured.norm_sum_HN[head, tile.first_row : tile.end_row]).double()
        p_RC = torch.where(sums_R[:, None] > 0, p_RC / sums_R[:, None], 0.0)
    return p_RC.float().numpy()


def score_parts(cache: ActivationCache, layer: int, head: int, tile: Tile) -> dict[str, NDArray[np.float64]]:
    """The terms that a rectangle's scores are sums of, (R, C) each, in float64.

    ``content`` always; ``content_position`` (the query with the distance) and ``position_content`` (the key
    with the distance) where positions are disentangled; ``bias`` for ALiBi and relative position biases. Each
    is divided as the score is, and nothing is said of which keys may be seen. Rows of global tokens with
    projections of their own have content alone.
    """
    ordinary = _rectangle_of(cache, layer, head, tile, of_globals=False)
    assert ordinary is not None
    parts = _parts(ordinary)
    marks = cache.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        of_globals = _rectangle_of(cache, layer, head, tile, of_globals=True)
        if of_globals is not None:
            rows = marks[tile.first_row : tile.end_row]
            parts["content"][rows] = _parts(of_globals)["content"][rows]
    return parts


def _parts(rectangle: _Rectangle) -> dict[str, NDArray[np.float64]]:
    q_R1K, k_C1K = rectangle.q_RK[:, None], rectangle.k_CK[:, None]

    def part(bias: AttentionBias) -> Tensor:
        return scores(rectangle.tile, q_R1K, k_C1K, bias)[0]

    distances = rectangle.bias.distances
    if distances is None:
        terms = {"content": part(AttentionBias())}
        if rectangle.bias.slopes_H is not None or rectangle.bias.relative is not None:
            terms["bias"] = part(rectangle.bias) - terms["content"]
        return {name: term.numpy() for name, term in terms.items()}
    kinds = (
        ("content_position", distances.keys_PHK, None),
        ("position_content", None, distances.queries_PHK),
    )
    content = part(AttentionBias(distances=type(distances)(distances.position, None, None)))
    terms = {"content": content}
    for name, keys_PHK, queries_PHK in kinds:
        if keys_PHK is not None or queries_PHK is not None:
            alone = AttentionBias(distances=type(distances)(distances.position, keys_PHK, queries_PHK))
            terms[name] = part(alone) - content
    return {name: term.numpy() for name, term in terms.items()}


def _rectangle_of(
    cache: ActivationCache, layer: int, head: int, tile: Tile, *, of_globals: bool
) -> "_Rectangle | None":
    project = cache.projected_for_globals if of_globals else cache.projected
    rows, columns = slice(tile.first_row, tile.end_row), slice(tile.first_column, tile.end_column)
    of_rows, of_columns = project(layer, rows), project(layer, columns)
    if of_rows is None or of_columns is None:
        return None
    mixer = cache.mixer(layer)
    assert isinstance(mixer, SoftmaxMixer)
    assert isinstance(of_rows, Projected)
    q_RK, k_CK, v_CK = (
        x[:, head].double().cpu() for x in (of_rows.q_NHK, of_columns.k_NHK, of_columns.v_NHK)
    )
    if of_globals:
        return _Rectangle(tile, q_RK, k_CK, v_CK, FullAttention(), AttentionBias())
    bias = with_tables(cache.bias(layer).of_head(head), Tensor.cpu)
    return _Rectangle(tile, q_RK, k_CK, v_CK, simplify(mixer.spec.pattern, cache.batch.layout), bias)


def _weights(
    cache: ActivationCache,
    where: tuple[int, int],
    rectangle: "_Rectangle | None",
    lse_R: Tensor,
    weighted: bool,
) -> Tensor:
    assert rectangle is not None
    layer, head = where
    s_RC = scores(rectangle.tile, rectangle.q_RK[:, None], rectangle.k_CK[:, None], rectangle.bias)[0]
    context = MaskContext(len(cache), cache.heads(layer), cache.globals_N, head)
    counts = key_counts(rectangle.tile, rectangle.pattern, s_RC.device, context)
    p_RC = (s_RC - lse_R[:, None]).exp()
    if counts is not None:
        counts = counts[0] if counts.ndim == 3 else counts
        p_RC = p_RC * counts
    if weighted:
        factor_1KE = out_factors(cache.mixer(layer))[head : head + 1].cpu()
        p_RC = p_RC * value_norms(rectangle.v_CK[:, None], factor_1KE)
    return p_RC


Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RowSums:
    """The sums that divide rows, in place of those that were measured; see `LayerStatistics`."""

    lse_HN: NDArray[np.float64]
    norm_sum_HN: Floats


Sums = LayerStatistics | RowSums
"""The sums of rows, from either source."""


class LayerCache:
    """Queries, keys and norms of the last requested layer, 8 H N K bytes, at least float32.

    Not for concurrent use by threads that request different layers.
    """

    def __init__(self, cache: ActivationCache) -> None:
        self._recording = cache
        self._rows: LayerRows | None = None

    def blocks(
        self,
        head: tuple[int, int],
        tile: Tile,
        measured: Sums | None,
        *,
        weighted: bool = False,
    ) -> Iterator[tuple[int, Floats]]:
        """A rectangle some rows at a time: the number of the first row, and (R, C) shares.

        Args:
            head: layer and number.
            tile: the rectangle.
            measured: of the layer, if it is: then nothing outside of the rectangle is computed.
            weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``.
        """
        rows = self.rows(head[0])
        width = tile.end_column - tile.first_column if measured is not None else rows.length
        step = max(1, cells_at_once(rows.length) // width)
        for first, end in rows.stretches(tile.first_row, tile.end_row, step):
            if measured is None:
                block = rows.block(first, end, slice(head[1], head[1] + 1))
                columns = tile.first_column, tile.end_column
                yield first, block.columns(*columns, weighted=weighted)
            else:
                part = Tile(first, end, tile.first_column, tile.end_column)
                yield first, _of_known_sums(rows, head[1], part, measured, weighted)

    def rectangle(
        self,
        head: tuple[int, int],
        tile: Tile,
        measured: Sums | None,
        *,
        weighted: bool = False,
    ) -> Floats:
        """The whole rectangle, (R, C)."""
        return np.concatenate([p_RC for _, p_RC in self.blocks(head, tile, measured, weighted=weighted)])

    def rows(self, layer: int) -> LayerRows:
        """Queries, keys and norms of a layer; only those of the last one are kept."""
        if self._rows is None or self._rows.layer != layer:
            self._rows = None  # one at a time
            self._rows = LayerRows(self._recording, layer)
        return self._rows


def _of_known_sums(rows: LayerRows, head: int, tile: Tile, measured: Sums, weighted: bool) -> Floats:
    """From the logarithms of rows' sums, which were measured."""
    side, some = rows.side(tile.first_row), slice(head, head + 1)
    s_RC = rows.scores(side, tile, some)[0]
    between = slice(tile.first_row, tile.end_row)
    lse_R = torch.from_numpy(measured.lse_HN[head, between]).to(s_RC)
    p_RC = s_RC.sub_(lse_R[:, None]).exp_()
    if weighted:
        p_RC *= side.norms_HN[head, tile.first_column : tile.end_column]
        sums_R = torch.from_numpy(measured.norm_sum_HN[head, between]).to(p_RC)
        p_RC /= sums_R.clamp_min(torch.finfo(p_RC.dtype).tiny)[:, None]
    return p_RC.float().cpu().numpy()
