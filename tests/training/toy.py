"""A vocabulary of the size of the tiny specs, and running text over it."""

from dataclasses import replace

import numpy as np
import torch

from tests.support.specs import VOCABULARY
from unmask.spec import EncoderSpec, LayerNorm, MaskedLM, Transform
from unmask.training.data.stream import Chunk
from unmask.training.vocabulary import Vocabulary

CLS, SEP, MASK, SPECIAL = 2, 3, 4, 5


def vocabulary(*, continues: bool = True, size: int = VOCABULARY) -> Vocabulary:
    """Ids 0 to 4 are special; every third of the others continues a word."""
    special_V = np.arange(size) < SPECIAL
    continues_V = (np.arange(size) % 3 == 0) & ~special_V if continues else np.zeros(size, dtype=np.bool_)
    return Vocabulary(size, CLS, SEP, MASK, special_V, continues_V)


def chunks(lengths, documents, seed: int = 0) -> list[Chunk]:
    """Random text without special tokens."""
    rng = np.random.default_rng(seed)
    return [
        Chunk(rng.integers(SPECIAL, VOCABULARY, length), document)
        for length, document in zip(lengths, documents, strict=True)
    ]


def with_heads(spec: EncoderSpec, *heads, enhanced: bool = False) -> EncoderSpec:
    """The spec with a predictor of words whose transform has the embedding's width, and more heads."""
    words = MaskedLM(Transform(spec.embedding.width, "gelu", LayerNorm(1e-7)), enhanced=enhanced)
    return replace(spec, heads=(words, *heads))


def gradients(loss: torch.Tensor, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By parameter; of zeros where the loss does not depend on it."""
    named = dict(module.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if grad is None else grad
        for (name, parameter), grad in zip(named.items(), found, strict=True)
    }
