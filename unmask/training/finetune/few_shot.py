"""Few-shot classification as in SetFit (Tunstall et al. 2022): what is drawn, and the head.

The encoder learns from pairs of texts that vectors of one label are alike. Then a logistic regression is
fitted to the vectors of the texts. The first part is an objective of the training loop.

Axes: S texts, or windows of long ones.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.files import replaced_folder
from unmask.base.progress import counted
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import ClassificationHead
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.spec import PooledVector
from unmask.tasks.embed import embed
from unmask.training.data.labeled import LabeledSequence, draw_pairs
from unmask.training.finetune.examples import Example, label_name
from unmask.training.finetune.records import Labeled
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.objectives.labeled import ContrastiveObjective
from unmask.training.run.log import read_events
from unmask.training.run.loop import evaluating, generator
from unmask.weights import Checkpoint, Source, read_checkpoint
from unmask.weights.build import build, on_meta
from unmask.weights.write.save import save

SHOTS_STREAM, PAIRS_STREAM = 5, 6
"""Seed streams of the drawn texts and pairs; see `unmask.training.run.loop` for the others."""

MANY_PAIRS, FEW_ITERATIONS = 5000, 3
"""Pairs above which a run says how to have fewer, and the ``num_iterations`` that it then names."""

ITERATIONS = 1000
"""The most steps of the head's fit; it takes far fewer."""


def few_texts(records: Sequence[Labeled], labels: Sequence[str], settings: FinetuneSettings) -> list[Labeled]:
    """``few_shot.shots`` records of each label, drawn with the run's seed, in their order; all without it.

    Raises:
        InvalidRequest: a label has fewer texts, or fewer than two.
    """
    assert settings.few_shot is not None
    shots = settings.few_shot.shots
    places: dict[str, list[int]] = {label: [] for label in labels}
    for place, record in enumerate(records):
        # A label that is not of the task is drawn too, so that reading it names its line.
        places.setdefault(label_name(record.label, settings.data), []).append(place)
    draw = generator(settings.seed, SHOTS_STREAM, 0)
    chosen: list[int] = []
    for label, available in places.items():
        if len(available) < (shots or 2):
            needs = f"few_shot.shots is {shots}" if shots else "pairs need at least 2 of each label"
            raise InvalidRequest(
                f"the training data have {counted(len(available), 'text')} with the label {label!r}, and "
                f"{needs}; "
                + ("add texts, or set fewer shots" if shots and len(available) > 1 else "add texts")
            )
        chosen += available if shots is None else draw.choice(available, shots, replace=False).tolist()
    return [records[place] for place in sorted(chosen)]


class FewShot:
    """The parts of few-shot learning in a run.

    Args:
        settings: settings of the run.
        encoder: with the head.
        checkpoint: says how states become the vector of a text.
        examples: the training texts, to which the head is fitted.
        items: the same as items, of which pairs are made.

    Raises:
        InvalidRequest: there are too many pairs, or none of one kind.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        encoder: Encoder,
        checkpoint: Checkpoint,
        examples: Sequence[Example],
        items: Sequence[LabeledSequence],
    ) -> None:
        assert settings.few_shot is not None
        assert isinstance(checkpoint.head, PooledVector)
        self.settings = settings.few_shot
        self.examples = examples
        self.pairs = draw_pairs(
            items,
            generator(settings.seed, PAIRS_STREAM, 0),
            strategy=self.settings.sampling_strategy,
            iterations=self.settings.num_iterations,
            max_pairs=self.settings.max_pairs,
        )
        self.objective = ContrastiveObjective(encoder, checkpoint.head)

    def described(self) -> str:
        """How many pairs there are of each kind, and how to have fewer where an epoch is long."""
        sentence, fewer = self.pairs.described(), 2 * FEW_ITERATIONS * len(self.examples)
        if self.settings.num_iterations is None and len(self.pairs) > MANY_PAIRS > fewer:
            sentence += f"; few_shot.num_iterations = {FEW_ITERATIONS} takes {fewer:,} pairs"
        return sentence

    def fit_head(self) -> str:
        """Fit the encoder's classifier to the texts, in place; a sentence about it.

        It is a function of the encoder's weights, so every process of a run fits the same.
        """
        encoder = self.objective.encoder
        encodings = [window.encoding for example in self.examples for window in example.windows]
        gold_S = np.array([int(example.gold) for example in self.examples for _ in example.windows])
        with evaluating(self.objective):
            e_SE = embed(TorchEngine(encoder), self.objective.output, encodings).astype(np.float64)
        linear_model = importlib.import_module("sklearn.linear_model")
        fitted = linear_model.LogisticRegression(C=self.settings.head_c, max_iter=ITERATIONS).fit(
            e_SE, gold_S
        )
        weights_CE, bias_C = softmax_form(fitted.coef_, fitted.intercept_)
        head = encoder.heads["sequence"]
        assert isinstance(head, ClassificationHead)
        with torch.no_grad():
            head.out.weight.copy_(torch.from_numpy(weights_CE))
            head.out.bias.copy_(torch.from_numpy(bias_C))
        right = float(fitted.score(e_SE, gold_S))
        return f"the head is fitted to {counted(len(gold_S), 'text')}; it classifies {right:.1%} correctly"


def softmax_form(
    weights_CE: NDArray[np.float64], bias_C: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A row for each class. Of two classes scikit-learn has one row, which is the difference of both."""
    if len(weights_CE) > 1:
        return weights_CE, bias_C
    return np.concatenate((-weights_CE, weights_CE)) / 2, np.concatenate((-bias_C, bias_C)) / 2


def figures_before(log: Path) -> dict[str, float]:
    """The figures of the head on the untrained encoder, by names such as ``before/accuracy``."""
    return {
        name.replace("dev/", "before/", 1): value
        for event in read_events(log)
        if event.get("event") == "held_out" and event.get("step") == 0
        for name, value in event.items()
        if name.startswith("dev/")
    }


def write_body(model: Path, body: Checkpoint, folder: Path) -> None:
    """Write the encoder of an exported model without its head, for `sentence-transformers`.

    Raises:
        OutputError: the disk is full or read-only.
    """
    checkpoint = read_checkpoint(Source(model, model.name))
    state = build(checkpoint, dtype=str(checkpoint.config["dtype"])).state_dict()
    encoder = on_meta(body.spec)
    encoder.load_state_dict({name: state[name] for name in encoder.state_dict()}, assign=True)
    with replaced_folder(folder) as partial:
        save(encoder, body, partial)
