"""The exact top-k keys of each query; ties are in text order.

Axes: s cells that are looked into.
"""

import torch
from torch import Tensor

UNSEEN = 1e29
"""A score this far below the largest of its row belongs to a masked key."""


def topk(below_HRC: Tensor, top_HRS: Tensor, cell: int, k: int) -> Tensor:
    """Columns of the largest scores of each row, (H, R, k), largest first; -1 where no key may be seen.

    A column among the k largest stands in one of the k runs with the largest maxima, where equal ones are
    taken in order, so only those runs are searched.

    Args:
        below_HRC: scores, less the largest of their row: at most 0.
        top_HRS: the largest of each run of ``cell`` columns, likewise.
        cell: columns of a run.
        k: how many.
    """
    heads, rows, columns = below_HRC.shape
    runs_HRs = _first(top_HRS, min(k, columns // cell))
    runs_HRs = runs_HRs.sort(dim=-1).values
    parts = below_HRC.view(heads, rows, -1, cell)
    wanted = runs_HRs[..., None].expand(-1, -1, -1, cell)
    candidates_HRC = parts.gather(2, wanted).flatten(-2)
    found = _first(candidates_HRC, min(k, candidates_HRC.shape[-1]))
    unseen = candidates_HRC.gather(-1, found) <= -UNSEEN
    at = runs_HRs.gather(-1, found // cell) * cell + found % cell
    at = at.masked_fill(unseen, -1)
    return torch.nn.functional.pad(at, (0, k - at.shape[-1]), value=-1)


def _first(below: Tensor, k: int) -> Tensor:
    """Places of the k largest of the last axis, of equal ones the first; numbers are at most 0."""
    if below.dtype != torch.float32:
        return below.abs().sort(dim=-1, stable=True).indices[..., :k]
    # The bits of numbers that are not negative are in their order; the place below them parts equals.
    bits = below.abs().view(torch.int32).long() << 32
    keys = bits | torch.arange(below.shape[-1], device=below.device)
    return keys.topk(k, dim=-1, largest=False).values & 0xFFFFFFFF


def filled(keys_HRk: Tensor, length: int) -> Tensor:
    """Keys with -1 replaced by the first keys of the text that are not listed, which get nothing."""
    k = keys_HRk.shape[-1]
    if bool((keys_HRk[..., -1] >= 0).all()):
        return keys_HRk
    first = torch.arange(min(2 * k, length), device=keys_HRk.device)
    listed = (keys_HRk[..., None] == first).any(-2)
    free = listed.byte().sort(dim=-1, stable=True).indices  # those not listed come first, in order
    missing = keys_HRk < 0
    number = (missing.cumsum(-1) - 1).clamp_min(0)
    return torch.where(missing, free.gather(-1, number), keys_HRk)
