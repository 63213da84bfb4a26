"""Complete rows of attention of one layer, some queries at a time, banded for sliding windows.

Statistics, maps, rollout and attribution are all computed from these rows. With them come the norms of the
vectors that a token contributes through a head (Kobayashi et al. 2020). Weights are those that the encoder
mixes values by: with attention sinks, which belong to no key, they add up to less than 1.

Axes: I heads times the width of one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.interpret.activation_cache import ActivationCache, Kind, Projected
from unmask.kernels import AttentionBias, MaskContext, Tile
from unmask.kernels.tile import key_counts, scores
from unmask.spec import AttentionPattern, CausalAttention, FullAttention, SlidingWindow
from unmask.spec.attention import simplify

LARGE = 1024.0
"""Beside products with it, a bias rounds away; a power of two, so that it is taken out again exactly."""


def out_matrix(mixer: SoftmaxMixer | LinearMixer) -> Tensor:
    """The output projection of the features of each head, without its bias: (H, K, D), float64.

    That of convolutions beside attention, which are no attention, is left out.

    Layers optimized for inference store their weights in a different order; these are evaluated feature by
    feature.
    """
    spec, out = mixer.spec, mixer.out
    own = spec.heads * spec.head_width
    inner = spec.mixed_width
    with torch.no_grad():
        if type(out) is nn.Linear:
            weight_ID = out.weight.detach().T.double()
        else:
            reference = next(mixer.buffers())
            dtype = reference.dtype if reference.is_floating_point() else torch.float32
            bias = getattr(out, "bias", None)
            dtype = dtype if bias is None else bias.dtype
            probe = torch.eye(inner, dtype=dtype, device=reference.device) * LARGE
            zero_1D = out(torch.zeros_like(probe[:1]))
            weight_ID = (out(probe).double() - zero_1D.double()) / LARGE
    return weight_ID[:own].view(spec.heads, spec.head_width, -1)


def out_factors(mixer: SoftmaxMixer | LinearMixer) -> Tensor:
    """A small factor of each head's output matrix that keeps lengths: ``||v W|| = ||v F||``, (H, K, E).

    It is the transposed triangular factor of ``W^T``, so lengths are as exact as by W itself; E is at most K.
    """
    weight_HKD = out_matrix(mixer)
    factors_HKE: Tensor = torch.linalg.qr(weight_HKD.mT).R.mT.contiguous()
    return factors_HKE


def value_norms(v_RHK: Tensor, factors_HKE: Tensor) -> Tensor:
    """``||f(x)||`` of every token in every head, (H, R), with ``f(x) = (x W_V + b_V) W_O`` of the head.

    The bias of the output projection belongs to no head and is left out.
    """
    lengths_HR: Tensor = torch.linalg.vector_norm(v_RHK.transpose(0, 1) @ factors_HKE.to(v_RHK), dim=-1)
    return lengths_HR


NEVER = -1e30
"""Score of a masked key. It is finite, so that 0 times it is 0; its probability is exactly 0."""

TOKENS_AT_ONCE = 2048
"""Tokens whose projections are made together."""

CELLS_AT_ONCE = 1 << 19
"""Probabilities in one block of rows, over its heads: 2 MB of float32, what two cores keep close."""

ROWS_IN_WINDOW = 64


def cells_at_once(length: int) -> int:
    """How many probabilities one block of rows has: far from all of a long text's map.

    Of texts below 2,048 tokens it is 1 MB of float32, which may be a whole map of a few heads: in smaller
    blocks, their many small operations would take ten times as long.
    """
    return min(CELLS_AT_ONCE, max(1 << 18, length * length // 16))


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Attention of queries ``first_row`` to ``end_row`` of some heads, over all keys they may see."""

    first_row: int
    end_row: int
    first_column: int
    """Keys before it get exactly 0 from these queries, as do keys from ``end_column`` on."""
    end_column: int
    heads: slice
    of_globals: bool
    """Whether these are rows of global tokens that have projections of their own."""
    p_HRC: Tensor
    """Rows sum to 1; with attention sinks, to 1 minus what the sink of the head takes."""
    lse_HR: Tensor
    """Logarithm of the sum of exponentials of a row's scores, the sink of the head among them."""
    norms_HC: Tensor
    """Norm of each key's contribution: ``||f(x_j)||`` of Kobayashi et al. 2020, see `value_norms`."""

    @property
    def weighted_HRC(self) -> Tensor:
        """Each key's part in ``sum_j p_ij ||f(x_j)||``; rows sum to 1, or to 0 where every norm is 0."""
        w_HRC = self.p_HRC * self.norms_HC[:, None]
        return w_HRC / w_HRC.sum(-1, keepdim=True).clamp_min(torch.finfo(w_HRC.dtype).tiny)

    def columns(self, first: int, end: int, *, weighted: bool = False) -> NDArray[np.float32]:
        """The weights of the first head for keys from ``first`` up to ``end``, (R, C), allowed or not."""
        block_RC = (self.weighted_HRC if weighted else self.p_HRC)[0].float().cpu().numpy()
        columns_RC = np.zeros((len(block_RC), end - first), dtype=np.float32)
        start = max(first, self.first_column)
        stop = max(start, min(end, self.end_column))
        columns_RC[:, start - first : stop - first] = block_RC[
            :, start - self.first_column : stop - self.first_column
        ]
        return columns_RC


@dataclass(frozen=True, eq=False)
class Side:
    """The queries, keys and norms that rows of one kind are computed from."""

    q_HNK: Tensor
    """Queries divided by sqrt(K), unless positions are disentangled; features for linear attention."""
    k_HNK: Tensor
    norms_HN: Tensor
    pattern: AttentionPattern
    bias: AttentionBias
    kind: Kind
    of_globals: bool = False


class LayerRows:
    """One layer of an activation cache with its queries, keys and value norms: 8 H N K bytes in float32.

    Args:
        cache: the activation cache of the text.
        layer: which layer.
        exact: compute in float64, regardless of the encoder's dtype.
        norms: compute the norms of values; without them, `RowBlock.norms_HC` is 0.
    """

    def __init__(
        self, cache: ActivationCache, layer: int, *, exact: bool = False, norms: bool = True
    ) -> None:
        self.layer = layer
        self.length = len(cache)
        self.kind = cache.kind(layer)
        self.heads = cache.heads(layer)
        self.globals_N = cache.globals_N
        self.dtype = torch.float64 if exact else cache.dtype
        mixer = cache.mixer(layer)
        factors = out_factors(mixer) if norms else None
        parts = _projections(cache, layer, self.dtype, factors)
        if isinstance(mixer, LinearMixer):
            with torch.no_grad():
                q_HNM, k_HNM = mixer.features(parts[0], parts[1])
            self.ordinary = Side(q_HNM, k_HNM, parts[2], FullAttention(), AttentionBias(), "kernel")
            self.of_globals: Side | None = None
            return
        pattern, bias = simplify(mixer.spec.pattern, cache.batch.layout), cache.bias(layer)
        self.ordinary = self._side(mixer, parts, pattern, bias)
        self.of_globals = None
        if cache.projected_for_globals(layer, slice(0, 1)) is not None:
            parts_of_globals = _projections(cache, layer, self.dtype, factors, of_globals=True)
            self.of_globals = self._side(
                mixer, parts_of_globals, FullAttention(), AttentionBias(), of_globals=True
            )

    @staticmethod
    def _side(
        mixer: SoftmaxMixer,
        parts: tuple[Tensor, Tensor, Tensor],
        pattern: AttentionPattern,
        bias: AttentionBias,
        of_globals: bool = False,
    ) -> Side:
        q_HNK, k_HNK, norms_HN = parts
        if bias.distances is None:
            q_HNK = q_HNK.div_(math.sqrt(mixer.spec.head_width))
        return Side(q_HNK, k_HNK, norms_HN, pattern, bias, "softmax", of_globals)

    def side(self, row: int) -> Side:
        """The side that a row is computed from."""
        if self.of_globals is not None and self.globals_N is not None and self.globals_N[row]:
            return self.of_globals
        return self.ordinary

    def stretches(self, first: int, end: int, rows: int) -> Iterator[tuple[int, int]]:
        """Runs of at most ``rows`` queries of one side, from ``first`` to ``end``."""
        while first < end:
            stop, side = first + 1, self.side(first)
            while stop < min(first + rows, end) and (self.of_globals is None or self.side(stop) is side):
                stop = min(first + rows, end) if self.of_globals is None else stop + 1
            yield first, stop
            first = stop

    def band(self, side: Side, first: int, end: int) -> tuple[int, int]:
        """Columns outside of which these rows see nothing."""
        if isinstance(side.pattern, CausalAttention):
            return 0, end
        if not isinstance(side.pattern, SlidingWindow):
            return 0, self.length
        far = side.pattern.radius * side.pattern.dilation
        return max(0, first - far), min(self.length, end + far)

    def scores(self, side: Side, tile: Tile, heads: slice, out: Tensor | None = None) -> Tensor:
        """Scores of a rectangle, (H, R, C), `NEVER` where a key may not be seen; of linear attention, logs.

        ``out``: where they go, of that shape.
        """
        q_HRK = side.q_HNK[heads, tile.first_row : tile.end_row]
        k_HCK = side.k_HNK[heads, tile.first_column : tile.end_column]
        if side.bias.distances is not None:
            bias = with_tables(side.bias, lambda table: table[:, heads])
            product_HRC = scores(tile, q_HRK.transpose(0, 1), k_HCK.transpose(0, 1), bias)
            s_HRC = product_HRC if out is None else out.copy_(product_HRC)
        else:
            s_HRC = torch.matmul(q_HRK, k_HCK.mT, out=out)
            if side.bias.slopes_H is not None:
                slopes_H11 = side.bias.slopes_H[heads].to(s_HRC)[:, None, None]
                s_HRC.sub_(tile.distance_RC(s_HRC.device).abs().to(s_HRC.dtype) * slopes_H11)
            if side.bias.relative is not None:
                s_HRC.add_(side.bias.relative.of_heads(heads).terms(*tile.extent, s_HRC))
        if side.kind == "kernel":
            return s_HRC.log_().clamp_(min=NEVER)
        counts = self.counts(side, tile, heads)
        if counts is not None and counts.dtype == torch.bool:
            s_HRC.masked_fill_(~counts, NEVER)
        elif counts is not None:
            s_HRC.add_(counts.to(s_HRC.dtype).log()).clamp_(min=NEVER)
        return s_HRC

    def counts(self, side: Side, tile: Tile, heads: slice) -> Tensor | None:
        """How often each query counts each key, (R, C) or (H, R, C); see `unmask.kernels.tile.key_counts`."""
        first, end, _ = heads.indices(self.heads)
        alone = first if end - first == 1 else None
        context = MaskContext(self.length, self.heads, self.globals_N, alone)
        counts = key_counts(tile, side.pattern, side.q_HNK.device, context)
        return counts if counts is None or counts.ndim == 2 or alone is not None else counts[heads]

    def keys_allowed(self, first: int, end: int) -> NDArray[np.int32]:
        """How many keys each of these queries may see, (H, R) where heads differ, else (1, R)."""
        side = self.side(first)
        counts = self.counts(side, Tile(first, end, 0, self.length), slice(0, self.heads))
        if counts is None:
            return np.full((1, end - first), self.length, dtype=np.int32)
        return np.asarray((counts > 0).sum(-1).int().cpu().numpy().reshape(-1, end - first))

    def block(self, first: int, end: int, heads: slice = slice(None)) -> RowBlock:
        """Complete rows of queries of one side, see `stretches`."""
        side = self.side(first)
        first_column, end_column = self.band(side, first, end)
        s_HRC = self.scores(side, Tile(first, end, first_column, end_column), heads)
        lse_HR = side.bias.with_sinks(torch.logsumexp(s_HRC, dim=-1), heads)
        return RowBlock(
            first, end, first_column, end_column, heads, side.of_globals,
            s_HRC.sub_(lse_HR[..., None]).exp_(), lse_HR,
            side.norms_HN[heads, first_column:end_column],
        )  # fmt: skip

    def blocks(
        self, head: int | None = None, rows: slice = slice(None), cells: int | None = None
    ) -> Iterator[RowBlock]:
        """All rows of one head, or of all heads, in order.

        No block has more than about ``cells`` numbers, or one row; None decides by the text's length.
        """
        cells = cells or cells_at_once(self.length)
        heads = slice(0, self.heads) if head is None else slice(head, head + 1)
        first, end, _ = rows.indices(self.length)
        pattern, columns, most = self.ordinary.pattern, self.length, end - first
        if isinstance(pattern, SlidingWindow):
            # More rows at once would see more columns that each of them alone does not.
            most = min(most, ROWS_IN_WINDOW)
            columns = min(columns, most + 2 * pattern.radius * pattern.dilation)
        at_once = max(1, min(most, cells // (columns * (heads.stop - heads.start))))
        for start, stop in self.stretches(first, end, at_once):
            yield self.block(start, stop, heads)


def with_tables(bias: AttentionBias, change: Callable[[Tensor], Tensor]) -> AttentionBias:
    """The bias with its tables of distances changed, as it is where it has none; sinks stay."""
    distances = bias.distances
    if distances is None:
        return bias
    tables = (distances.keys_PHK, distances.queries_PHK)
    changed = (None if table is None else change(table) for table in tables)
    return replace(bias, distances=type(distances)(distances.position, *changed))


def _projections(
    cache: ActivationCache,
    layer: int,
    dtype: torch.dtype,
    factors_HKE: Tensor | None,
    *,
    of_globals: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys (H, N, K), laid out head by head, and norms of values (H, N), 0 without factors."""
    project = cache.projected_for_globals if of_globals else cache.projected
    length, arrays = len(cache), None
    for first in range(0, length, TOKENS_AT_ONCE):
        rows = slice(first, min(first + TOKENS_AT_ONCE, length))
        part = project(layer, rows)
        assert isinstance(part, Projected)
        q_RHK, k_RHK, v_RHK = (x.to(dtype) for x in part)
        if arrays is None:
            heads, width = q_RHK.shape[1:]
            q_HNK, k_HNK = (q_RHK.new_empty(heads, length, width) for _ in range(2))
            arrays = q_HNK, k_HNK, q_RHK.new_zeros(heads, length)
        arrays[0][:, rows] = q_RHK.transpose(0, 1)
        arrays[1][:, rows] = k_RHK.transpose(0, 1)
        if factors_HKE is not None:
            arrays[2][:, rows] = value_norms(v_RHK, factors_HKE)
    assert arrays is not None
    return arrays
