"""A `transformers` model as a plain function of tensors, for libraries that convert models."""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.engine import Source
from benchmarks.peers.transformers_models import quiet_load, quiet_tokenizer

INPUTS = "inputs.json"
"""Beside the converted graphs: the names of their inputs, in positional order."""


class StatesOnly(torch.nn.Module):
    """A model that takes positional inputs and returns only the last hidden states.

    Args:
        model: a model of `transformers`.
        names: names of its inputs, in positional order.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map inputs of shape (B, N) to states of shape (B, N, D)."""
        states: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


Convert = Callable[[StatesOnly, tuple[Tensor, ...], Path], None]
"""Writes a model to a path; the tensors are inputs of two texts, which show the axes that vary."""


def converted(source: Source, graph: str, convert: Convert) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer and the names of the inputs of ``graph`` in the folder ``source.work``.

    The graph is made by ``convert`` if it is missing. Otherwise nothing is loaded but the tokenizer, so that
    a process of its own starts as one would that only runs the graph.
    """
    path, listed = source.work / graph, source.work / INPUTS
    if path.exists():
        return quiet_tokenizer(source), tuple(json.loads(listed.read_text()))
    model, tokenizer, names = quiet_load(source, attn_implementation="eager", dtype=torch.float32)
    texts = ["one text", "another text of more words than that"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        convert(StatesOnly(model, names), tuple(inputs[name] for name in names), path)
    listed.write_text(json.dumps(names))
    return tokenizer, names
