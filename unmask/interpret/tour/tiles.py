"""Attention tile by tile: the same numbers from a running maximum and two running sums."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.recorded_text import RecordedText
from unmask.model.kernels import Tile, allowed, scores

LENGTHS = (512, 2048, 8192, 32768)
BYTES = 4
"""Of a float32, in which scores are held in practice."""


@dataclass(frozen=True)
class Step:
    """What is known of one query after one tile of keys."""

    end_key: int
    """Keys before this one have been seen."""
    maximum: float
    """Of their scores."""
    sum: float
    """Of exp(score - maximum) over them."""
    rescaled: float
    """What earlier sums were multiplied by, exp(old maximum - new one); 0 at the first tile."""


@dataclass(frozen=True, eq=False)
class Tiled:
    """One head, whole and in tiles, in float64."""

    layer: int
    head: int
    query: int
    tile: int
    """Queries and keys of a side."""
    steps: tuple[Step, ...]
    """Of the query."""
    error: float
    """Largest difference of any number of the head's output between both ways."""
    output_size: float
    """Root mean square of the output, beside which the error is to be seen."""
    held_whole: int
    """Numbers of scores held at once by computing whole."""
    held_tiled: int
    """The same in tiles: one tile of scores, and a maximum and a sum a query of the tile."""
    lengths: tuple[int, ...]
    bytes_whole: tuple[int, ...]
    """Of float32 scores of one head, by length of text; counted, not measured."""
    bytes_tiled: tuple[int, ...]
    """The same in tiles of this size, which no length changes."""


def tiled(heard: RecordedText, layer: int, head: int, query: int, *, tile: int = 8) -> Tiled:
    """Compute a head tile by tile with an online softmax, and compare it with the whole.

    Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022.

    Raises:
        InvalidRequest: no such layer, head or query, or a tile below 1.
    """
    mixer = heard.mixer(layer)
    if not 0 <= head < mixer.heads or not 0 <= query < len(heard) or tile < 1:
        raise InvalidRequest(
            f"head {head} (of {mixer.heads}), query {query} (of {len(heard)}) or tile {tile} is not there; "
            "each counts from 0 and a tile has at least 1 token"
        )
    count = len(heard)
    output, trace = np.empty((count, mixer.head_width)), []
    for first in range(0, count, tile):
        end = min(first + tile, count)
        part, steps = _rows(heard, layer, head, (first, end), tile=tile, query=query)
        output[first:end] = part
        trace += steps
    whole = heard.mixed(layer, heard.probabilities(layer))[:, head].numpy()
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
        lengths=LENGTHS,
        bytes_whole=tuple(BYTES * length**2 for length in LENGTHS),
        bytes_tiled=tuple(BYTES * held for _ in LENGTHS),
    )


def _rows(
    heard: RecordedText, layer: int, head: int, rows: tuple[int, int], *, tile: int, query: int
) -> tuple[NDArray[np.float64], list[Step]]:
    """The output of some queries, (R, K), and the steps of the watched one if it is among them."""
    mixer, bias = heard.mixer(layer), heard.bias(layer).of_head(head)
    q_R1K = heard.queries[layer][rows[0] : rows[1], head : head + 1]
    maximum_R = torch.full((len(q_R1K),), -torch.inf, dtype=torch.float64)
    sum_R, mixed_RK = torch.zeros(len(q_R1K), dtype=torch.float64), torch.zeros_like(q_R1K[:, 0])
    seen_HNN = heard.allowed(layer)[head] if _heads_differ(heard, layer) else None
    steps = []
    for first in range(0, len(heard), tile):
        part = Tile(*rows, first, min(first + tile, len(heard)))
        columns = slice(part.first_column, part.end_column)
        s_RC = scores(part, q_R1K, heard.keys[layer][columns, head : head + 1], bias)[0]
        if seen_HNN is not None:
            seen_RC = seen_HNN[rows[0] : rows[1], columns]
        else:
            whole = allowed(part, mixer.pattern, torch.device("cpu"))
            seen_RC = torch.ones_like(s_RC, dtype=torch.bool) if whole is None else whole
        s_RC = s_RC.masked_fill(~seen_RC, -torch.inf)
        new_R = torch.maximum(maximum_R, s_RC.amax(-1))
        # A query that has seen no key yet has maximum -inf; 0 stands in for it, where all is 0 anyway.
        safe_R = torch.where(new_R.isfinite(), new_R, 0.0)
        factor_R = (maximum_R - safe_R).exp()
        weight_RC = (s_RC - safe_R[:, None]).exp()
        sum_R = sum_R * factor_R + weight_RC.sum(-1)
        mixed_RK = mixed_RK * factor_R[:, None] + weight_RC @ heard.values[layer][columns, head]
        maximum_R = new_R
        if rows[0] <= query < rows[1] and bool(new_R[query - rows[0]].isfinite()):
            row = query - rows[0]
            steps.append(Step(part.end_column, float(new_R[row]), float(sum_R[row]), float(factor_R[row])))
    return (mixed_RK / sum_R[:, None]).numpy(), steps


def _heads_differ(heard: RecordedText, layer: int) -> bool:
    """Whether the attention pattern depends on more than the tile: random blocks, global tokens."""
    return type(heard.mixer(layer).pattern).__name__ not in ("Whole", "Window")
