"""Tokenization and packed batches. Does not import torch."""

from unmask.text.batch import PackedBatch, SequenceLayout, token_budget_batches
from unmask.text.encoding import Encoding, Truncation
from unmask.text.rows import Blank, Line, read_lines
from unmask.text.tokenizer import Tokenizer

__all__ = [
    "Blank",
    "Encoding",
    "Line",
    "PackedBatch",
    "SequenceLayout",
    "Tokenizer",
    "Truncation",
    "read_lines",
    "token_budget_batches",
]
