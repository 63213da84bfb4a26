"""Which simpler attention pattern is equivalent on one batch. Does not import torch."""

from unmask.spec.attention import (
    AttentionPattern,
    BlockSparse,
    FullAttention,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text.batch import SequenceLayout


def simplify(pattern: AttentionPattern, layout: SequenceLayout) -> AttentionPattern:
    """The simplest pattern that is equivalent on this batch, so that more kernels support it."""
    match pattern:
        case BlockSparse() if layout.lengths.max() <= pattern.whole_up_to:
            return FullAttention()
        case SlidingWindowGlobal() if layout.globals_T is None or not layout.globals_T.any():
            return simplify(pattern.window, layout)
        case SlidingWindow() if pattern.dilation == 1 and layout.lengths.max() <= pattern.radius + 1:
            return FullAttention()
        case _:
            return pattern
