"""Training steps of `unmask` itself, as `unmask pretrain` and `unmask finetune` take them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.encoder import compile_blocks
from unmask.encoder.trained_linear import train_with_onednn
from unmask.engines.native.training import train_natively
from unmask.text import Tokenizer
from unmask.training.data.labeled import LabeledSequence
from unmask.training.data.stream import Chunk
from unmask.training.finetune.settings import DataSettings, FinetuneSettings, ModelSettings
from unmask.training.finetune.start import task_checkpoint, task_encoder
from unmask.training.objectives.interface import Example, LossOutput
from unmask.training.objectives.labeled import LabeledObjective
from unmask.training.objectives.language_modeling import MaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.optim import OptimizerSpec, build_optimizer
from unmask.training.run.loop import precision_context
from unmask.training.vocabulary import Vocabulary
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

TrainingPrecision = Literal["float32", "autocast", "bfloat16"]
"""As in `unmask.training.run.settings.Precision`; Trainer supports the first two."""

MASKED = 0.15
LEARNING_RATE, DECAY, BETAS, EPS, CLIP = 1e-4, 0.01, (0.9, 0.98), 1e-6, 1.0

CLASSES = 2
"""Labels of a classifier; text n of a round has the label n modulo `CLASSES`, as speed does not depend on
them."""


def write_classifier(folder: Path, out: Path, seed: int) -> None:
    """Write the checkpoint with a new classification head, as `unmask finetune` would begin with it.

    Raises:
        InvalidRequest: the family has no such head.
    """
    settings = FinetuneSettings(
        name="classifier",
        task="classification",
        model=ModelSettings(start_from=str(folder)),
        data=DataSettings(train=("-",)),
        seed=seed,
    )
    begun = read_checkpoint(Source(folder, "", None))
    checkpoint = task_checkpoint(settings, begun, [f"label {number}" for number in range(CLASSES)])
    save(task_encoder(settings, checkpoint, begun, lambda sentence: None), checkpoint, out)


class OurRun:
    """Trains a model with the steps of `unmask pretrain`, or of `unmask finetune` if it is a classifier."""

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
        self.objective: MaskedLanguageModel | LabeledObjective
        self.items: list[Chunk] | list[LabeledSequence]
        if "masked" in encoder.heads:
            masking = MaskingSpec(rate=MASKED)
            self.objective = MaskedLanguageModel(encoder, Vocabulary.of(tokenizer), masking)
            self.items = [Chunk(one[1:-1], number) for number, one in enumerate(ids)]
        else:
            self.objective = LabeledObjective(encoder, "sequence")
            self.items = [
                LabeledSequence(one, np.zeros_like(one), np.array(number % CLASSES))
                for number, one in enumerate(ids)
            ]
        if precision == "bfloat16":
            self.objective.to(torch.bfloat16)
        self.objective.train()
        train_with_onednn(self.objective)
        train_natively(self.objective)
        if compiled:
            compile_blocks(encoder)
        spec = OptimizerSpec(learning_rate=LEARNING_RATE, weight_decay=DECAY, betas=BETAS, eps=EPS, clip=CLIP)
        self.optimizer = build_optimizer(self.objective, spec)
        self.sequences, self.precision = sequences, precision
        self.draw = np.random.default_rng(seed)

    def example(self, numbers: Sequence[int]) -> Example:
        """The texts with these indices, masked or with their labels; sorted by length, so that texts of equal
        length are adjacent."""
        ordered = sorted(numbers, key=lambda number: len(self.items[number].ids))
        items: list[Any] = [self.items[number] for number in ordered]
        return self.objective.prepare(items, self.draw, 0.0)

    def step(self, numbers: Sequence[int]) -> None:
        """Take one optimizer step."""
        example = self.example(numbers)
        with precision_context(self.precision, torch.device("cpu")):
            outcome: LossOutput = self.objective(example, example.counts)
        outcome.loss.backward()
        self.optimizer.clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def round(self) -> float:
        """Train on every text once, in random order; return the seconds."""
        start = time.perf_counter()
        order = self.draw.permutation(len(self.items)).tolist()
        for first in range(0, len(order), self.sequences):
            self.step(order[first : first + self.sequences])
        return time.perf_counter() - start
