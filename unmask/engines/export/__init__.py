"""Encoders as ONNX graphs, for other runtimes: see `unmask.engines.export.onnx`."""

from typing import Literal

OutputName = Literal[
    "last_hidden_state", "sentence_embedding", "token_embeddings", "sparse_embedding", "logits"
]
"""What a graph gives: states (B, N, D), a vector per text (B, E), one per token (B, N, E), weights of words
(B, V), or logits of the chosen head."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What a graph reads, int64 of shape (B, N); the last only where the encoder has several token types."""
