"""Distillation losses: sums over tokens, in nats or as 1 minus a cosine.

Each is exact, computed sequence by sequence without padding, and differentiable in the student. Large
intermediate results (logits over the vocabulary and token-by-token maps) are computed a few rows at a time
and recomputed for the gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.kernels import AttentionBias, MaskContext, Tile, scores
from unmask.kernels.tile import key_counts
from unmask.spec import AttentionPattern
from unmask.text.batch import SequenceLayout
from unmask.training.objectives.prediction import LOGITS_AT_ONCE

ROWS_AT_ONCE = 256
"""Queries of a map that are held in memory at once: with 8,192 keys and 12 heads, 100 MB in float32."""

Factors = tuple[Tensor, Tensor, Tensor | None]
"""The factors of logits: states (M, E), a vector per word (V, E), a bias (V,) or None."""


@dataclass(frozen=True)
class AttentionParts:
    """The inputs of one layer's attention, for a packed batch."""

    queries_THK: Tensor
    """As used in scores, with rotary embeddings applied."""
    keys_THK: Tensor
    values_THK: Tensor
    bias: AttentionBias
    pattern: AttentionPattern


def word_divergence(student: Factors, teacher: Factors, temperature: float) -> Tensor:
    """Sum over tokens of ``t^2 KL(teacher || student)`` of the predictions at temperature t.

    Hinton, Vinyals & Dean 2015: logits are divided by t before the softmax, and the divergence is multiplied
    by t^2 so that gradients keep their scale.
    """
    x_ME, words_VE, bias_V = student
    y_ME, theirs_VE, theirs_V = teacher
    at_once = LOGITS_AT_ONCE if x_ME.device.type == "cpu" else 64 * LOGITS_AT_ONCE
    step = max(1, at_once // len(words_VE))

    def some(x_RE: Tensor, y_RE: Tensor) -> Tensor:
        log_RV = _exact(functional.linear(x_RE, words_VE, bias_V)).div(temperature).log_softmax(-1)
        wanted_RV = _exact(functional.linear(y_RE, theirs_VE, theirs_V)).div(temperature).log_softmax(-1)
        return temperature**2 * functional.kl_div(log_RV, wanted_RV, reduction="sum", log_target=True)

    return _added(
        x_ME, [_again(some, x_ME[at : at + step], y_ME[at : at + step]) for at in range(0, len(x_ME), step)]
    )


def cosine_distance(x_TD: Tensor, y_TD: Tensor) -> Tensor:
    """Sum over tokens of 1 minus the cosine of the student's state and the teacher's (Sanh et al. 2019)."""
    return (1 - functional.cosine_similarity(_exact(x_TD), _exact(y_TD), dim=-1)).sum()


def attention_divergence(student: AttentionParts, teacher: AttentionParts, layout: SequenceLayout) -> Tensor:
    """Sum over queries of the mean over heads of KL(teacher's attention || student's) (Wang et al. 2020).

    Both must have the same number of heads and attention pattern; each head of the student learns from the
    teacher's head with the same number.
    """
    heads = student.queries_THK.shape[1]
    sums = []
    for tile, rows, context in _tiles(layout, heads):

        def of_tile(tile: Tile = tile, rows: slice = rows, context: MaskContext = context) -> Tensor:
            ours_HRC, seen = _log_attention(student, tile, rows, context)
            wanted_HRC, _ = _log_attention(teacher, tile, rows, context)
            apart_HRC = wanted_HRC - ours_HRC
            if seen is not None:
                apart_HRC = torch.where(seen, apart_HRC, 0.0)
            return (wanted_HRC.exp() * apart_HRC).sum() / heads

        sums.append(_again(of_tile))
    return _added(student.queries_THK, sums)


def relation_divergence(x_THK: Tensor, y_THK: Tensor, layout: SequenceLayout, heads: int) -> Tensor:
    """Sum over tokens of the mean over heads of KL between relations of a teacher's y and a student's x.

    A relation is ``softmax(x_i x_j / sqrt(K'))`` over all tokens j of the sequence, regardless of the layer's
    attention pattern; the features of all heads are regrouped into ``heads`` of K' each (Wang et al. 2020
    for values; Wang et al. 2021 for queries, keys and values).
    """
    x_TRK, y_TRK = (part.reshape(len(part), heads, -1) for part in (x_THK, y_THK))
    sums = []
    for tile, rows, _ in _tiles(layout, heads):

        def of_tile(tile: Tile = tile, rows: slice = rows) -> Tensor:
            ours_HRC, wanted_HRC = (
                _scores(tile, own_NRK, own_NRK, AttentionBias()).log_softmax(-1)
                for own_NRK in (x_TRK[rows], y_TRK[rows])
            )
            return functional.kl_div(ours_HRC, wanted_HRC, reduction="sum", log_target=True) / heads

        sums.append(_again(of_tile))
    return _added(x_THK, sums)


def _tiles(layout: SequenceLayout, heads: int) -> list[tuple[Tile, slice, MaskContext]]:
    """Complete rows, a few at a time: the tile, its sequence's tokens, and its mask context."""
    return [
        (
            Tile(first, min(first + ROWS_AT_ONCE, length), 0, length),
            rows,
            MaskContext.of(layout, sequence, heads),
        )
        for sequence in range(layout.sequence_count)
        for rows in [layout.rows(sequence)]
        for length in [rows.stop - rows.start]
        for first in range(0, length, ROWS_AT_ONCE)
    ]


def _log_attention(
    parts: AttentionParts, tile: Tile, rows: slice, context: MaskContext
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of a tile, (H, R, C), and a mask of visible keys; None if all are visible."""
    s_HRC = _scores(tile, parts.queries_THK[rows], parts.keys_THK[rows], parts.bias)
    counts = key_counts(tile, parts.pattern, s_HRC.device, context)
    if counts is None:
        return s_HRC.log_softmax(-1), None
    s_HRC = s_HRC + counts.to(s_HRC.dtype).log()
    return s_HRC.log_softmax(-1), counts > 0


def _scores(tile: Tile, q_NHK: Tensor, k_NHK: Tensor, bias: AttentionBias) -> Tensor:
    """Scores of a sequence's rows in float32 or better, even under autocast; (H, R, C)."""
    with torch.autocast(q_NHK.device.type, enabled=False):
        return scores(tile, _exact(q_NHK[tile.first_row : tile.end_row]), _exact(k_NHK), bias)


def _exact(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _again(part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Compute a part, and recompute it for its gradient."""
    result: Tensor = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def _added(like: Tensor, sums: list[Tensor]) -> Tensor:
    """The sum; 0 with a gradient of 0 if there are no terms."""
    return torch.stack(sums).sum() if sums else _exact(like).sum() * 0
