"""Encode a batch in passes of bounded size, with the gradient of one big pass (Gao et al. 2021)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.text.batch import PackedBatch, SequenceLayout

Encode = Callable[[PackedBatch], Tensor]
"""From a packed batch to a vector for each sequence or token."""


def parts_of(batch: PackedBatch, tokens_per_pass: int | None) -> Iterator[PackedBatch]:
    """The batch in parts of at most that many tokens, in order; a longer sequence is a part of its own."""
    layout = batch.layout
    if tokens_per_pass is None or layout.token_count <= tokens_per_pass:
        yield batch
        return
    first = 0
    for last in range(1, layout.sequence_count + 1):
        after = layout.offsets[min(last + 1, layout.sequence_count)]
        if last == layout.sequence_count or after - layout.offsets[first] > tokens_per_pass:
            yield _part(batch, first, last)
            first = last


def _part(batch: PackedBatch, first: int, last: int) -> PackedBatch:
    layout = batch.layout
    rows = slice(int(layout.offsets[first]), int(layout.offsets[last]))
    marks = None if layout.globals_T is None else layout.globals_T[rows]
    inner = SequenceLayout(layout.offsets[first : last + 1] - layout.offsets[first], marks)
    queries = None if batch.queries_T is None else batch.queries_T[rows]
    return PackedBatch(batch.ids_T[rows], batch.token_type_ids_T[rows], inner, queries)


def encode_in_passes(encode: Encode, batch: PackedBatch, tokens_per_pass: int | None) -> Tensor:
    """Vectors of a whole batch, of which only one part at a time has its activations in memory.

    The first pass over a part keeps nothing but its vectors. When the gradient of the loss reaches these, the
    part is encoded again with the same dropout masks, and its gradient is added to that of the weights. So
    the gradient is that of the whole batch, at the cost of a second forward pass.

    Args:
        encode: computes the vectors of a part; must depend on nothing but weights and dropout.
        batch: all sequences.
        tokens_per_pass: the largest part; None encodes everything at once.
    """
    parts = list(parts_of(batch, tokens_per_pass))
    if len(parts) == 1:
        return encode(parts[0])
    if not torch.is_grad_enabled():
        return torch.cat([encode(part) for part in parts])
    found: list[Tensor] = [checkpoint(encode, part, use_reentrant=False) for part in parts]
    return torch.cat(found)
