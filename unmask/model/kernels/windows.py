"""Windowed softmax attention in plain torch, with memory and work linear in tokens.

The packed batch is cut into chunks of queries, whatever sequences they belong to. Since sequences lie end to
end, all keys of a chunk stand within the window's span before, in and after it; a mask keeps out those that
are too far or of another sequence. Neighbouring keys are views, so nothing is copied or materialised but
the mask, one bool for each query and each key of its chunk. Where every text is so short that its window
holds all of it, attention is whole, and runs as such.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from unmask.errors import KernelError
from unmask.model.kernels.interface import Attended, Capability
from unmask.model.kernels.sdpa import Rectangles, SdpaKernel
from unmask.model.kernels.tile import ScoreTerms
from unmask.model.spec import NoPosition, Reach, Whole, Window
from unmask.text.batch import SequenceLayout

CHUNK = 64
"""Queries of a chunk, at least; with wider windows as many as their radius, so that two thirds of the work
are of use."""


@dataclass(frozen=True)
class Chunks:
    """A packed batch as chunks of queries and the keys around each."""

    queries: int
    """Of each chunk."""
    span: int
    """Keys before and after each chunk."""
    seen_B1RC: Tensor
    """Which keys of its chunk each query sees; B chunks of R queries, C = R + 2 span keys."""


WHOLE = SdpaKernel()
"""Attends where windows hold whole texts."""


class WindowKernel:
    """One masked SDPA over all chunks of a batch."""

    capability = Capability(
        name="windows",
        computes="torch SDPA over chunks of queries and the keys around them",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        reaches=frozenset({Window}),
        positions=frozenset({NoPosition}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
    )

    def plan(self, layout: SequenceLayout, reach: Reach, device: torch.device) -> Chunks | Rectangles:
        """The chunks and their mask, or rectangles of texts that are no longer than a window."""
        if not isinstance(reach, Window):
            raise KernelError("the windows kernel was called for something its record does not list")
        tokens, longest = layout.token_count, int(layout.lengths.max())
        if reach.dilation == 1 and longest <= reach.radius + 1:
            return WHOLE.plan(layout, Whole(), device)
        span = min(reach.radius, (longest - 1) // reach.dilation) * reach.dilation
        queries = min(max(CHUNK, span), tokens)
        chunks = -(-tokens // queries)
        sequence_T = torch.from_numpy(layout.sequence_of_T).to(device)
        # Tokens added to fill the last chunk see one another, so that no row of the softmax is empty.
        filled_T = pad(sequence_T, (0, chunks * queries - tokens), value=-1)
        around = pad(filled_T, (span, span), value=-2).unfold(0, queries + 2 * span, queries)
        row_R1 = torch.arange(queries, device=device)[:, None] + span
        distance_RC = (torch.arange(queries + 2 * span, device=device)[None, :] - row_R1).abs()
        near_RC = (distance_RC <= span) & (distance_RC % reach.dilation == 0)
        seen_BRC = (filled_T.view(chunks, queries, 1) == around[:, None, :]) & near_RC
        return Chunks(queries, span, seen_BRC[:, None])

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: Chunks | Rectangles,
        *,
        reach: Reach,
        terms: ScoreTerms,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> Attended:
        """All chunks at once; see `Kernel.attend`."""
        if log_sum_exp or not isinstance(reach, Window) or terms != ScoreTerms():
            raise KernelError("the windows kernel was called for something its record does not list")
        if isinstance(plan, Rectangles):
            return WHOLE.attend(q_THK, k_THK, v_THK, plan, reach=Whole(), terms=terms, dropout=dropout)
        tokens = q_THK.shape[0]
        fill = plan.seen_B1RC.shape[0] * plan.queries - tokens
        q_BRHK = pad(q_THK, (0, 0, 0, 0, 0, fill)).reshape(-1, plan.queries, *q_THK.shape[1:])
        keys = plan.queries + 2 * plan.span
        k_BHCK, v_BHCK = (
            pad(x_THK, (0, 0, 0, 0, plan.span, plan.span + fill))
            .unfold(0, keys, plan.queries)
            .permute(0, 1, 3, 2)
            for x_THK in (k_THK, v_THK)
        )
        o_BHRK = scaled_dot_product_attention(
            q_BRHK.transpose(1, 2), k_BHCK, v_BHCK, attn_mask=plan.seen_B1RC, dropout_p=dropout
        )
        return Attended(o_BHRK.transpose(1, 2).flatten(0, 1)[:tokens], None)
