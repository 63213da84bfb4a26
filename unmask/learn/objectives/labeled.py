"""Objectives on labeled texts: classes, numbers, labels of tokens, answers as spans, and choices.

Axes: P targets: texts, labeled tokens, or questions; R rows of logits: tokens, or choices; C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.errors import InvalidRequest
from unmask.learn.data.labeled import IGNORED, LabeledRole, LabeledSequence
from unmask.learn.objectives.interface import Example, LossOutput, Objective
from unmask.model.encoder import Encoder
from unmask.model.spec import Classifier, ProblemType
from unmask.text.batch import PackedBatch

TERMS: Mapping[LabeledRole, str] = {
    "sequence": "classification",
    "tokens": "tagging",
    "span": "answering",
    "choice": "multiple_choice",
}
"""The term of each role's loss, by which figures are named."""


@dataclass(frozen=True, eq=False)
class LabeledExample(Example):
    """A packed batch of texts with their targets."""

    rows_P: NDArray[np.int64]
    """The row of the head's logits that predicts each target; of a span, the token of each bound; of a
    question, its first choice."""
    targets_P: NDArray[np.generic]
    """See `LabeledSequence.target`, concatenated: (P,), or (P, C) for numbers and several labels. Of a span,
    the bounds as rows of the packed batch, (P, 2); of a question, the row of the right choice, (P,)."""


class LabeledObjective(Objective[LabeledSequence, LabeledExample]):
    """The loss of one of an encoder's classifiers on labeled texts.

    Cross-entropy for single labels, words, spans (the mean of start and end) and the choices of a question;
    binary cross-entropy, a mean over labels, for several labels; squared error for a regression. The loss is
    the mean over the targets of the global batch: over texts, labeled tokens, or questions. The same as the
    heads of `transformers`, except that padding, of which there is none, takes no part in the softmax over
    the tokens of an answer.

    The term is one of `TERMS`, with the figures ``loss`` and, where there are classes, ``accuracy``.

    Args:
        encoder: with the head.
        role: of the head.
        problem: what a head of the role ``sequence`` predicts.
        class_weights: a factor for the loss of each class; the mean is then a weighted mean, as in PyTorch.
        label_smoothing: the share of a target's probability that is spread over all classes.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        encoder: Encoder,
        role: LabeledRole,
        problem: ProblemType = "single_label_classification",
        *,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        heads = {head.role: head for head in encoder.spec.heads if isinstance(head, Classifier)}
        if role not in heads:
            raise InvalidRequest(
                f"the encoder has no {role} head; it has: {', '.join(encoder.heads) or 'none'}"
            )
        if not 0 <= label_smoothing < 1:
            raise InvalidRequest(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        if role == "choice" and class_weights is not None:
            raise InvalidRequest("class_weights is given and choices have no classes; leave it out")
        classes = heads[role].classes
        if class_weights is not None and len(class_weights) != classes:
            raise InvalidRequest(
                f"class_weights has {len(class_weights)} numbers, and the head has {classes} classes; give "
                "one for each"
            )
        self.encoder = encoder
        self.role = role
        self.problem = problem
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)

    def prepare(
        self, items: Sequence[LabeledSequence], draw: np.random.Generator, progress: float
    ) -> LabeledExample:
        """Pack the texts; nothing is random here."""
        ids, types, marks = zip(*(one for item in items for one in item.sequences()), strict=True)
        batch = PackedBatch.of_ids(ids, types, marks if any(marks) else None)
        starts = batch.layout.offsets[:-1]
        if self.role == "tokens":
            targets = np.concatenate([item.target for item in items])
            rows = np.flatnonzero(targets != IGNORED)
            targets = targets[rows]
        elif self.role == "span":
            targets = np.stack([item.target + start for item, start in zip(items, starts, strict=True)])
            rows = np.arange(len(items))
        elif self.role == "choice":
            rows = np.cumsum([0, *(len(item.lengths) for item in items[:-1])])
            targets = rows + np.stack([item.target for item in items])
        else:
            targets = np.stack([item.target for item in items])
            rows = np.arange(len(items))
        return LabeledExample(
            {TERMS[self.role]: len(rows)},
            batch.layout.token_count,
            len(ids),
            batch,
            rows_P=rows,
            targets_P=targets,
        )

    def forward(self, example: LabeledExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of losses, divided by the number of targets in the global batch."""
        x_TD = self.encoder.encode(example.batch)
        logits = self.encoder.logits(self.role, x_TD, example.batch.layout)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        rows_P = torch.from_numpy(example.rows_P).to(logits.device)
        targets = torch.from_numpy(example.targets_P).to(logits.device)
        right: Tensor | None
        if self.role == "span":
            loss, right = self._span(logits, targets, example)
        elif self.role == "choice":
            loss, right = self._choices(logits, targets, rows_P)
        else:
            loss, right = self._classes(logits[rows_P], targets)
        term = TERMS[self.role]
        sums = {f"{term}/loss": loss.detach()}
        if right is not None:
            sums[f"{term}/accuracy"] = right
        return LossOutput(loss / max(1, totals[term]), sums)

    def _classes(self, logits_PC: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.role == "sequence" and self.problem == "regression":
            return functional.mse_loss(logits_PC, targets, reduction="none").mean(-1).sum(), None
        if self.role == "sequence" and self.problem == "multi_label_classification":
            losses = functional.binary_cross_entropy_with_logits(
                logits_PC, targets, pos_weight=self.class_weights, reduction="none"
            )
            right = ((logits_PC > 0) == (targets > 0.5)).float().mean(-1).sum()
            return losses.mean(-1).sum(), right
        loss = functional.cross_entropy(
            logits_PC,
            targets,
            weight=self.class_weights,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return loss, (logits_PC.argmax(-1) == targets).sum()

    def _span(self, logits_T2: Tensor, bounds_P2: Tensor, example: LabeledExample) -> tuple[Tensor, Tensor]:
        """Cross-entropy of both bounds over the tokens of each text; right where both are."""
        of_T = torch.from_numpy(example.batch.layout.sequence_of_T).to(logits_T2.device)
        totals, largest = _log_sums(logits_T2, of_T, example.sequences)
        chosen = logits_T2.gather(0, bounds_P2)
        right = (chosen.detach() >= largest).all(-1).sum()
        return (totals - chosen).mean(-1).sum(), right

    def _choices(self, logits_R1: Tensor, targets_P: Tensor, firsts_P: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the right choice over the choices of each question."""
        questions = len(firsts_P)
        of_R = torch.zeros(len(logits_R1), dtype=torch.int64, device=logits_R1.device)
        of_R[firsts_P[1:]] = 1
        of_R = of_R.cumsum(0)
        totals, largest = _log_sums(logits_R1, of_R, questions)
        chosen = logits_R1[targets_P]
        right = (chosen.detach() >= largest).sum()
        sums = logits_R1.new_zeros((questions, 1)).index_add(0, of_R, logits_R1)
        means = sums / of_R.bincount(minlength=questions)[:, None]
        losses = totals - (1 - self.label_smoothing) * chosen - self.label_smoothing * means
        return losses.sum(), right

    def encoders(self) -> Mapping[str, Encoder]:
        """The one encoder."""
        return {"": self.encoder}


def _log_sums(logits_RC: Tensor, group_of_R: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of exponentials over the rows of each group, and the largest logit of each."""
    index = group_of_R[:, None].expand_as(logits_RC)
    shape = (groups, logits_RC.shape[1])
    largest = logits_RC.new_full(shape, -torch.inf).scatter_reduce(0, index, logits_RC.detach(), "amax")
    exponentials = (logits_RC - largest[group_of_R]).exp()
    return logits_RC.new_zeros(shape).index_add(0, group_of_R, exponentials).log() + largest, largest
