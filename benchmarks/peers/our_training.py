"""Training steps of `unmask` itself, as `unmask pretrain` takes them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.compiled import compile_blocks
from unmask.encoder.trained_linear import train_with_onednn
from unmask.text import Tokenizer
from unmask.training.data.batches import Chunk
from unmask.training.objectives.language_modeling import MaskedExample, MaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.optim import OptimizerSpec, build_optimizer
from unmask.training.run.loop import precision_context
from unmask.training.vocabulary import Vocabulary
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

TrainingPrecision = Literal["float32", "autocast", "bfloat16"]
"""As in `unmask.training.run.settings.Precision`; Trainer supports the first two."""

MASKED = 0.15
LEARNING_RATE, DECAY, BETAS, EPS, CLIP = 1e-4, 0.01, (0.9, 0.98), 1e-6, 1.0


class OurRun:
    """Trains a model with the steps of `unmask pretrain`."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        ids: Sequence[NDArray[np.int64]],
        sequences: int,
        precision: TrainingPrecision,
        *,
        compiled: bool = False,
        seed: int = 0,
    ) -> None:
        encoder = build(read_checkpoint(Source(folder, "", None)))
        encoder.requires_grad_(True)
        self.objective = MaskedLanguageModel(encoder, Vocabulary.of(tokenizer), MaskingSpec(rate=MASKED))
        if precision == "bfloat16":
            self.objective.to(torch.bfloat16)
        self.objective.train()
        train_with_onednn(self.objective)
        if compiled:
            compile_blocks(encoder)
        spec = OptimizerSpec(learning_rate=LEARNING_RATE, weight_decay=DECAY, betas=BETAS, eps=EPS, clip=CLIP)
        self.optimizer = build_optimizer(self.objective, spec)
        self.chunks = [Chunk(one[1:-1], number) for number, one in enumerate(ids)]
        self.sequences, self.precision = sequences, precision
        self.draw = np.random.default_rng(seed)

    def example(self, numbers: Sequence[int]) -> MaskedExample:
        """The texts with these indices, masked; sorted by length, so that texts of equal length are
        adjacent."""
        ordered = sorted(numbers, key=lambda number: len(self.chunks[number].ids))
        return self.objective.prepare([self.chunks[number] for number in ordered], self.draw, 0.0)

    def step(self, numbers: Sequence[int]) -> None:
        """Take one optimizer step."""
        example = self.example(numbers)
        with precision_context(self.precision, torch.device("cpu")):
            outcome = self.objective(example, example.counts)
        outcome.loss.backward()
        self.optimizer.clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def round(self) -> float:
        """Train on every text once, in random order; return the seconds."""
        start = time.perf_counter()
        order = self.draw.permutation(len(self.chunks)).tolist()
        for first in range(0, len(order), self.sequences):
            self.step(order[first : first + self.sequences])
        return time.perf_counter() - start
