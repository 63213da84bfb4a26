"""Named patterns of attention maps, each with a score per head: vertical lines, diagonals, blocks, links.

Every score is an excess over a baseline, divided by the largest excess there can be: 0 is what the baseline
gives (or less), 1 the pure pattern. Below, ``p_ij`` is the attention from query i to key j of N tokens, and
uniform attention is that to all keys a query may see. The relations of keys to queries that examples of a
corpus are found by are in `unmask.interpret.corpus.batch`, the labels of heads in `taxonomy`.

``vertical``: one column. The attention that the most attended key receives, mean over all queries (the
adapted sink score, see `sinks`); baseline 1/N.

``previous``, ``next``, ``self``: one diagonal. The attention to the key at offset -1, +1 or 0, mean over the
queries that have one; baseline: that of uniform attention.

``block``: squares along the diagonal, one for each segment: a sentence, or a text of a pair. Of the attention
to tokens that are not special and more than one token away, ``s = sum_i (w_i - a_i u_i) / sum_i (1 - u_i)``,
where ``a_i`` is all of it, ``w_i`` the part inside the query's own segment, and ``u_i`` that part under
uniform attention. The baseline is s of segments whose borders lie in the middle of the true ones: a head that
merely attends to near tokens has about the same s there, since it does not know where sentences end.

``distant``: single points far from the diagonal. The largest ``p_ij - r_j`` among keys at least `DISTANT`
tokens away that are not special, where ``r_j`` is what key j receives on average, so that a vertical line has
none; mean over the queries that have such keys. The baseline is 0, which uniform attention gives.

The names of the patterns are those used when attention maps are read by eye (Clark et al. 2019, Kovaleva et
al. 2019); these scores are ours.

Axes: P patterns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.progress import Watch, unwatched
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.attention.rows import LayerRows, RowBlock
from unmask.kernels import Tile
from unmask.text import Encoding
from unmask.text.borders import sentence_ends

SHAPES = ("vertical", "previous", "next", "self", "block", "distant")
"""The patterns that have a score."""

DISTANT = 8
"""Tokens from query to key from which a key is distant, here and in `unmask.interpret.corpus.batch`."""

CLEAR = 0.3
"""The least score of a pattern that is said to be there: the threshold of Gu et al. 2025 for sinks."""

NONE = "none"
"""The name for a head without a clear pattern."""


@dataclass(frozen=True, eq=False)
class HeadPatterns:
    """The scores of every head on one text; made by `head_patterns`."""

    scores_LHP: NDArray[np.float64]
    """0 to 1, in the order of `SHAPES`; NaN where the text has no such keys (``block`` in a single segment,
    ``distant`` in a short text) and for heads that a layer does not have."""
    segments: int
    """Sentences, or texts of a pair, that blocks are looked for in."""

    def of(self, layer: int, head: int) -> dict[str, float | None]:
        """The scores of one head by name; None where there is none."""
        scores = self.scores_LHP[layer, head].tolist()
        return {name: None if np.isnan(score) else score for name, score in zip(SHAPES, scores, strict=True)}

    def named(self, layer: int, head: int) -> tuple[str, float]:
        """The pattern with the largest score and that score; `NONE` where it is below `CLEAR`."""
        scores_P = np.nan_to_num(self.scores_LHP[layer, head], nan=0.0)
        best = int(scores_P.argmax())
        return (SHAPES[best] if scores_P[best] >= CLEAR else NONE), float(scores_P[best])


def head_patterns(
    cache: ActivationCache,
    statistics: AttentionStatistics,
    *,
    layers: tuple[int, ...] | None = None,
    watch: Watch | None = None,
) -> HeadPatterns:
    """Score every head of a text for each of `SHAPES`, from blocks of complete rows; no array has N x N.

    Args:
        cache: the activation cache of the text.
        statistics: of the same text; layers that have not been measured are measured now.
        layers: which; None means all. The others are NaN.
        watch: called after each block of rows with the layers done.

    Raises:
        InvalidRequest: there is no such layer.
        Cancelled: ``watch`` stopped the work.
    """
    watch = watch or unwatched
    chosen = tuple(range(cache.layer_count)) if layers is None else layers
    statistics.measure(watch, layers=chosen)
    segment_N = segments_of(cache.encoding)
    heads = max(cache.heads(layer) for layer in range(cache.layer_count))
    scores_LHP = np.full((cache.layer_count, heads, len(SHAPES)), np.nan)
    for done, number in enumerate(chosen):
        layer = statistics.layer(number)
        blocks = _BlocksAndLinks(cache, number, layer, segment_N)
        blocks.run(partial(watch, "finding patterns", done, len(chosen)))
        of_layer = [_vertical(layer), *_diagonals(layer), blocks.block_H, blocks.distant_H]
        scores_LHP[number, : layer.heads] = np.clip(np.stack(of_layer, axis=-1), 0, 1)
    watch("finding patterns", len(chosen), len(chosen))
    return HeadPatterns(scores_LHP, int(segment_N.max()) + 1)


def segments_of(encoding: Encoding) -> NDArray[np.int64]:
    """The segment of each token from 0, (N,); -1 for special tokens.

    Of a pair each text is one segment; of a single text each sentence is, see `sentence_ends`. Segments
    without a token have no number.
    """
    if encoding.pair is not None:
        segment_N = np.where(encoding.special, -1, encoding.sequence_ids)
    else:
        ends = np.array(sentence_ends(encoding.text), dtype=np.int64)
        of_token_N = np.searchsorted(ends, encoding.offsets[:, 0], side="right")
        segment_N = np.where(encoding.special, -1, of_token_N)
    numbers, of_N = np.unique(segment_N, return_inverse=True)
    return np.asarray(of_N - int(numbers[0] < 0), dtype=np.int64)


def shifted(segment_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Segments from the middle of each to the middle of the next, the halves at the ends by themselves."""
    shifted_N = np.full(len(segment_N), -1)
    for segment in range(int(segment_N.max()) + 1):
        tokens = np.flatnonzero(segment_N == segment)
        shifted_N[tokens] = segment + (np.arange(len(tokens)) >= len(tokens) / 2)
    return shifted_N


def _vertical(layer: LayerStatistics) -> NDArray[np.float64]:
    even = 1 / len(layer)
    return _excess(layer.attention_received_HN.max(-1), np.full(layer.heads, even))


def _diagonals(layer: LayerStatistics) -> list[NDArray[np.float64]]:
    length, scores = len(layer), []
    diagonals: tuple[tuple[Literal["self", "previous", "next"], slice], ...] = (
        ("previous", slice(1, None)),
        ("next", slice(0, -1)),
        ("self", slice(None)),
    )
    for name, asking in diagonals:
        even_H = (1 / layer.keys_HN[:, asking]).mean(-1) if length > 1 else np.ones(layer.heads)
        scores.append(_excess(layer.diagonal_mean_H(name), even_H))
    return scores


def _excess(value_H: NDArray[np.floating], even_H: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance of a share from that of uniform attention, relative to 1; 0 where that is 1 already."""
    return np.where(even_H < 1, (value_H - even_H) / np.maximum(1 - even_H, 1e-12), 0.0)


class _BlocksAndLinks:
    """The scores of blocks and of distant links of one layer, added up over blocks of rows."""

    def __init__(
        self, cache: ActivationCache, number: int, layer: LayerStatistics, segment_N: NDArray[np.int64]
    ) -> None:
        self.rows = LayerRows(cache, number, norms=False)
        like = self.rows.ordinary.q_HNK
        self.received_HN = torch.from_numpy(layer.attention_received_HN).to(like)
        self.plain_N = torch.from_numpy(~cache.encoding.special).to(like.device)
        self.segments = [
            torch.from_numpy(numbers_N).to(like.device) for numbers_N in (segment_N, shifted(segment_N))
        ]
        # Of true and of shifted segments: attention above uniform, and the most that there could be.
        self.above_2H, self.most_2H = (
            torch.zeros(2, layer.heads, dtype=torch.float64, device=like.device) for _ in range(2)
        )
        self.link_H, self.asking_H = (torch.zeros_like(self.above_2H[0]) for _ in range(2))

    def run(self, tick: Callable[[], None]) -> None:
        """Read all rows, block by block; ``tick`` is called after each."""
        with torch.no_grad():
            for block in self.rows.blocks():
                self._add(block)
                tick()

    @property
    def block_H(self) -> NDArray[np.float64]:
        """The score of each head, NaN where no query may see far keys of another segment."""
        s_2H = (self.above_2H / self.most_2H.clamp_min(1e-12)).clamp(0, 1).cpu().numpy()
        return np.where(self.most_2H[0].cpu().numpy() > 0, _excess(s_2H[0], s_2H[1]), np.nan)

    @property
    def distant_H(self) -> NDArray[np.float64]:
        """The score of each head, NaN where no query has a key so far away."""
        return np.asarray((self.link_H / self.asking_H).cpu().numpy())

    def _add(self, block: RowBlock) -> None:
        p_HRC = block.p_HRC
        rows, columns = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
        tile = Tile(rows.start, rows.stop, columns.start, columns.stop)
        away_RC = tile.distance_RC(p_HRC.device).abs()
        plain_RC = self.plain_N[rows, None] & self.plain_N[columns]
        counts = self.rows.counts(self.rows.side(rows.start), tile, slice(0, self.rows.heads))
        allowed_HRC = (
            torch.ones_like(plain_RC)[None] if counts is None else (counts > 0).view(-1, *plain_RC.shape)
        )
        far_HRC = allowed_HRC & plain_RC & (away_RC > 1)
        far_HR = far_HRC.sum(-1)
        to_far_HR = (p_HRC * far_HRC).sum(-1, dtype=torch.float64)
        for kind, segment_N in enumerate(self.segments):
            segment_HRC = far_HRC & (segment_N[rows, None] == segment_N[columns])
            even_HR = segment_HRC.sum(-1) / far_HR.clamp_min(1).double()
            within_HR = (p_HRC * segment_HRC).sum(-1, dtype=torch.float64)
            self.above_2H[kind] += (within_HR - to_far_HR * even_HR).sum(-1)
            self.most_2H[kind] += ((far_HR > 0) * (1 - even_HR)).sum(-1)
        distant_HRC = far_HRC & (away_RC >= DISTANT)
        above_HRC = p_HRC - self.received_HN[:, None, columns]
        self.link_H += above_HRC.masked_fill(~distant_HRC, 0).amax(-1).clamp_min(0).double().sum(-1)
        self.asking_H += distant_HRC.any(-1).sum(-1)
