"""Tiled attention: the same results from a running maximum and two running sums."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText
from unmask.kernels import Tile, allowed, scores
from unmask.spec import CausalAttention, FullAttention, SlidingWindow

KERNEL_TILE = 64
"""Queries and keys of a tile in fast kernels, about."""
LENGTHS = (512, 2048, 8192, 32768)
BYTES = 4
"""Bytes of a float32, in which scores are usually held."""


@dataclass(frozen=True)
class Step:
    """The running state of one query after a tile of keys."""

    end_key: int
    """The keys before this index have been processed."""
    maximum: float
    """Maximum of their scores."""
    sum: float
    """Sum of exp(score - maximum) over them."""
    rescaled: float
    """The factor by which earlier sums were rescaled, exp(old maximum - new maximum); 0 at the first tile."""


@dataclass(frozen=True, eq=False)
class Tiled:
    """One head, computed at once and in tiles, in float64."""

    layer: int
    head: int
    query: int
    tile: int
    """Side of a tile, in queries and in keys."""
    steps: tuple[Step, ...]
    """The running states of the query."""
    error: float
    """Largest absolute difference between the two outputs."""
    output_size: float
    """Root mean square of the output, to compare the error with."""
    held_whole: int
    """Number of values held at once without tiles."""
    held_tiled: int
    """Number of values held at once with tiles: one tile of scores, and a maximum and a sum per query."""
    kernel_tile: int
    """Side of a tile of the size that kernels use."""
    lengths: tuple[int, ...]
    bytes_whole: tuple[int, ...]
    """Bytes of the float32 scores of one head, by length of text; counted, not measured."""
    bytes_tiled: tuple[int, ...]
    """Bytes of one tile of `kernel_tile` with the maximum, the sum and the output of each of its queries;
    independent of the length."""


def tiled(recorded: RecordedText, layer: int, head: int, query: int, *, tile: int = 8) -> Tiled:
    """Compute a head in tiles with an online softmax, and compare it with the direct computation.

    Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022.

    Raises:
        InvalidRequest: there is no such layer, head or query, or the tile is below 1.
    """
    mixer = recorded.mixer(layer)
    if not 0 <= head < mixer.heads or not 0 <= query < len(recorded) or tile < 1:
        raise InvalidRequest(
            f"head {head} (of {mixer.heads}), query {query} (of {len(recorded)}) or tile {tile} is out of "
            "range; heads and queries count from 0, and a tile has at least 1 token"
        )
    count = len(recorded)
    output, trace = np.empty((count, mixer.head_width)), []
    for first in range(0, count, tile):
        end = min(first + tile, count)
        part, steps = _rows(recorded, layer, head, (first, end), tile=tile, query=query)
        output[first:end] = part
        trace += steps
    whole = recorded.mixed(layer, recorded.probabilities(layer))[:, head].numpy()
    held = tile * tile + 2 * tile
    return Tiled(
        layer,
        head,
        query,
        tile,
        tuple(trace),
        error=float(np.abs(output - whole).max()),
        output_size=float(np.sqrt((whole**2).mean())),
        held_whole=count * count,
        held_tiled=held,
        kernel_tile=KERNEL_TILE,
        lengths=LENGTHS,
        bytes_whole=tuple(BYTES * length**2 for length in LENGTHS),
        bytes_tiled=tuple(BYTES * KERNEL_TILE * (KERNEL_TILE + 2 + mixer.head_width) for _ in LENGTHS),
    )


def _rows(
    recorded: RecordedText, layer: int, head: int, rows: tuple[int, int], *, tile: int, query: int
) -> tuple[NDArray[np.float64], list[Step]]:
    """The output of some queries, (R, K), and the steps of ``query`` if it is one of them."""
    mixer, bias = recorded.mixer(layer), recorded.bias(layer).of_head(head)
    q_R1K = recorded.queries[layer][rows[0] : rows[1], head : head + 1]
    maximum_R = torch.full((len(q_R1K),), -torch.inf, dtype=torch.float64)
    sum_R, mixed_RK = torch.zeros(len(q_R1K), dtype=torch.float64), torch.zeros_like(q_R1K[:, 0])
    seen_HNN = recorded.allowed(layer)[head] if _heads_differ(recorded, layer) else None
    steps = []
    for first in range(0, len(recorded), tile):
        part = Tile(*rows, first, min(first + tile, len(recorded)))
        columns = slice(part.first_column, part.end_column)
        s_RC = scores(part, q_R1K, recorded.keys[layer][columns, head : head + 1], bias)[0]
        if seen_HNN is not None:
            seen_RC = seen_HNN[rows[0] : rows[1], columns]
        else:
            whole = allowed(part, mixer.pattern, torch.device("cpu"))
            seen_RC = torch.ones_like(s_RC, dtype=torch.bool) if whole is None else whole
        s_RC = s_RC.masked_fill(~seen_RC, -torch.inf)
        new_R = torch.maximum(maximum_R, s_RC.amax(-1))
        # Before its first allowed key, a query has maximum -inf; 0 replaces it, since all sums are 0.
        safe_R = torch.where(new_R.isfinite(), new_R, 0.0)
        factor_R = (maximum_R - safe_R).exp()
        weight_RC = (s_RC - safe_R[:, None]).exp()
        sum_R = sum_R * factor_R + weight_RC.sum(-1)
        mixed_RK = mixed_RK * factor_R[:, None] + weight_RC @ recorded.values[layer][columns, head]
        maximum_R = new_R
        if rows[0] <= query < rows[1] and bool(new_R[query - rows[0]].isfinite()):
            row = query - rows[0]
            steps.append(Step(part.end_column, float(new_R[row]), float(sum_R[row]), float(factor_R[row])))
    return (mixed_RK / sum_R[:, None]).numpy(), steps


def _heads_differ(recorded: RecordedText, layer: int) -> bool:
    """Whether the attention pattern depends on more than the tile: random blocks, global tokens."""
    return not isinstance(recorded.mixer(layer).pattern, FullAttention | CausalAttention | SlidingWindow)
