"""Torch's scaled dot product attention over a packed batch, without a padding mask.

Sequences of equal length form a rectangle (B, H, N, K) that needs no mask, so the batch runs as one
call per distinct length. When sequences of equal length already stand side by side, as `passes`
orders them, rectangles are views of the packed tensors and nothing is moved.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from unmask.errors import KernelError
from unmask.model.kernels.interface import Attended, Capability
from unmask.model.kernels.tile import ScoreTerms
from unmask.model.spec import NoPosition, Reach, Whole
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class Rectangles:
    """A packed batch as runs of sequences of equal length."""

    shapes: tuple[tuple[int, int], ...]
    """(B, N) of each run, in order; their products add up to T."""
    tokens_T: Tensor | None
    """Packed tokens in the order of the runs; None where that is the packed order."""
    restore_T: Tensor | None
    """The way back."""


class SdpaKernel:
    """One call of `torch.nn.functional.scaled_dot_product_attention` per distinct length."""

    capability = Capability(
        name="sdpa",
        computes="torch SDPA, one call per distinct length",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        reaches=frozenset({Whole}),
        positions=frozenset({NoPosition}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
    )

    def plan(self, layout: SequenceLayout, reach: Reach, device: torch.device) -> Rectangles:
        """Runs of equal length; tokens are reordered only if equal lengths are apart."""
        lengths = layout.lengths
        runs = [(length, len(list(run))) for length, run in groupby(lengths.tolist())]
        if len({length for length, _ in runs}) == len(runs):
            return Rectangles(tuple((count, length) for length, count in runs), None, None)
        order = np.argsort(lengths, kind="stable")
        tokens_T = np.concatenate([np.arange(*layout.offsets[s : s + 2]) for s in order])
        distinct, counts = np.unique(lengths, return_counts=True)
        shapes = tuple(zip(counts.tolist(), distinct.tolist(), strict=True))
        return Rectangles(
            shapes,
            torch.from_numpy(tokens_T).to(device),
            torch.from_numpy(np.argsort(tokens_T)).to(device),
        )

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: Rectangles,
        *,
        reach: Reach,
        terms: ScoreTerms,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> Attended:
        """Each rectangle by SDPA; see `Kernel.attend`."""
        if log_sum_exp or not isinstance(reach, Whole) or terms != ScoreTerms():
            raise KernelError("the sdpa kernel was called for something its record does not list")
        if plan.tokens_T is not None:
            q_THK, k_THK, v_THK = (x[plan.tokens_T] for x in (q_THK, k_THK, v_THK))
        mixed, start = [], 0
        for count, length in plan.shapes:
            end = start + count * length
            q_BHNK, k_BHNK, v_BHNK = (
                x[start:end].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q_THK, k_THK, v_THK)
            )
            o_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, dropout_p=dropout)
            mixed.append(o_BHNK.transpose(1, 2).flatten(0, 1))
            start = end
        o_THK = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return Attended(o_THK if plan.restore_T is None else o_THK[plan.restore_T], None)
