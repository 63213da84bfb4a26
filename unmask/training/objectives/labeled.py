"""Objectives on labeled texts: classes, numbers, labels of tokens, answers as spans, choices, and pairs.

Axes: P targets: texts, labeled tokens, or questions; R rows of logits: tokens, or choices; C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import embed
from unmask.errors import InvalidRequest
from unmask.spec import ROLES, Classifier, LabeledRole, PooledVector, ProblemType
from unmask.spec.roles import Targets
from unmask.text.batch import PackedBatch
from unmask.training.data.labeled import IGNORED, LabeledSequence
from unmask.training.objectives.consistency import (
    Divergence,
    Sift,
    class_divergence,
    grouped_divergence,
    has_dropout,
    label_divergence,
    log_sums,
    number_divergence,
    r_drop_divergence,
)
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.objectives.specs import SiftSpec, SoftLabelsSpec

DIVERGENCES: Mapping[ProblemType, Divergence] = {
    "single_label_classification": class_divergence,
    "multi_label_classification": label_divergence,
    "regression": number_divergence,
}
"""What R-Drop and SiFT measure for each problem."""


@dataclass(frozen=True, eq=False)
class LabeledExample(Example):
    """A packed batch of texts with their targets."""

    rows_P: NDArray[np.int64]
    """The row of the head's logits that predicts each target; of a span, the token of each bound; of a
    question, its first choice."""
    targets_P: NDArray[np.generic]
    """See `LabeledSequence.target`, concatenated: (P,), or (P, C) for numbers and several labels. Of a span,
    the bounds as rows of the packed batch, (P, 2); of a question, the row of the right choice, (P,)."""


class TargetLoss(ABC):
    """What one kind of targets is compared with, and how."""

    @abstractmethod
    def rows_and_targets(
        self, items: Sequence[LabeledSequence], starts_S: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """``rows_P`` and ``targets_P`` of `LabeledExample`; sequences of the batch start at ``starts_S``."""

    @abstractmethod
    def of(
        self, logits: Tensor, example: LabeledExample, class_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The sum of losses over targets, and the number of right ones, if there are classes."""

    @abstractmethod
    def divergence(self, example: LabeledExample, first: Tensor, other: Tensor) -> Tensor:
        """How far the second prediction is from the first; see `Divergence`."""


@dataclass(frozen=True)
class TextLoss(TargetLoss):
    """The loss of a class, several labels, or numbers of each text."""

    problem: ProblemType
    label_smoothing: float

    def rows_and_targets(
        self, items: Sequence[LabeledSequence], starts_S: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """A row for each text."""
        return np.arange(len(items)), np.stack([item.target for item in items])

    def of(
        self, logits: Tensor, example: LabeledExample, class_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy, or that of each label, or a squared error."""
        logits_PC, targets = logits[_rows(example, logits)], _targets(example, logits)
        match self.problem:
            case "regression":
                return functional.mse_loss(logits_PC, targets, reduction="none").mean(-1).sum(), None
            case "multi_label_classification":
                losses = functional.binary_cross_entropy_with_logits(
                    logits_PC, targets, pos_weight=class_weights, reduction="none"
                )
                right = ((logits_PC > 0) == (targets > 0.5)).float().mean(-1).sum()
                return losses.mean(-1).sum(), right
            case "single_label_classification":
                loss = functional.cross_entropy(
                    logits_PC,
                    targets,
                    weight=class_weights,
                    label_smoothing=self.label_smoothing,
                    reduction="sum",
                )
                return loss, (logits_PC.argmax(-1) == targets).sum()
            case _:
                assert_never(self.problem)

    def divergence(self, example: LabeledExample, first: Tensor, other: Tensor) -> Tensor:
        """That of the problem."""
        rows_P = _rows(example, first)
        return DIVERGENCES[self.problem](first[rows_P], other[rows_P])


class WordLoss(TextLoss):
    """The loss of a class of each labeled token."""

    def rows_and_targets(
        self, items: Sequence[LabeledSequence], starts_S: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """A row for each labeled token."""
        targets = np.concatenate([item.target for item in items])
        rows = np.flatnonzero(targets != IGNORED)
        return rows, targets[rows]


class SpanLoss(TargetLoss):
    """Cross-entropy of both bounds over the tokens of each text; right where both are."""

    def rows_and_targets(
        self, items: Sequence[LabeledSequence], starts_S: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """The bounds of each answer."""
        bounds = [item.target + start for item, start in zip(items, starts_S, strict=True)]
        return np.arange(len(items)), np.stack(bounds)

    def of(
        self, logits: Tensor, example: LabeledExample, class_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The mean of both bounds."""
        bounds_P2 = _targets(example, logits)
        totals, largest = log_sums(logits, _text_of(example, logits), example.sequences)
        chosen = logits.gather(0, bounds_P2)
        right = (chosen.detach() >= largest).all(-1).sum()
        return (totals - chosen).mean(-1).sum(), right

    def divergence(self, example: LabeledExample, first: Tensor, other: Tensor) -> Tensor:
        """Over the tokens of each text."""
        return grouped_divergence(first, other, _text_of(example, first), example.sequences)


@dataclass(frozen=True)
class ChoiceLoss(TargetLoss):
    """Cross-entropy of the right choice over the choices of each question."""

    label_smoothing: float

    def rows_and_targets(
        self, items: Sequence[LabeledSequence], starts_S: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """The first and the right choice of each question."""
        rows = np.cumsum([0, *(len(item.lengths) for item in items[:-1])])
        return rows, rows + np.stack([item.target for item in items])

    def of(
        self, logits: Tensor, example: LabeledExample, class_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Over the choices of each question."""
        targets_P, of_R = _targets(example, logits), _question_of(example, logits)
        questions = len(targets_P)
        totals, largest = log_sums(logits, of_R, questions)
        chosen = logits[targets_P]
        right = (chosen.detach() >= largest).sum()
        sums = logits.new_zeros((questions, 1)).index_add(0, of_R, logits)
        means = sums / of_R.bincount(minlength=questions)[:, None]
        losses = totals - (1 - self.label_smoothing) * chosen - self.label_smoothing * means
        return losses.sum(), right

    def divergence(self, example: LabeledExample, first: Tensor, other: Tensor) -> Tensor:
        """Over the choices of each question."""
        return grouped_divergence(first, other, _question_of(example, first), len(example.rows_P))


def loss_of(targets: Targets, problem: ProblemType, label_smoothing: float) -> TargetLoss:
    """The loss of a role's targets; ``problem`` is that of texts."""
    match targets:
        case "texts":
            return TextLoss(problem, label_smoothing)
        case "words":
            return WordLoss("single_label_classification", label_smoothing)
        case "spans":
            return SpanLoss()
        case "choices":
            return ChoiceLoss(label_smoothing)
        case _:
            assert_never(targets)


class LabeledObjective(Objective[LabeledSequence, LabeledExample]):
    """The loss of one of an encoder's classifiers on labeled texts.

    Cross-entropy for single labels, words, spans (the mean of start and end) and the choices of a question;
    binary cross-entropy, a mean over labels, for several labels; squared error for a regression. The loss is
    the mean over the targets of the global batch: over texts, labeled tokens, or questions. The same as the
    heads of `transformers`, except that padding, of which there is none, takes no part in the softmax over
    the tokens of an answer.

    The term is that of the role, with the figures ``loss`` and, where there are classes, ``accuracy``.

    Args:
        encoder: with the head.
        role: of the head.
        problem: what a head of the role ``sequence`` predicts.
        class_weights: a factor for the loss of each class; of several labels, for that of a label that
            applies. The mean stays one over all targets, so factors above 1 raise the loss.
        label_smoothing: the share of a target's probability that is spread over all classes.
        r_drop: the factor of R-Drop's divergence between two passes, of which the loss is the mean; 0 for one
            pass. Its figure is ``r_drop``.
        sift: virtual adversarial training, with the figure ``sift``; None for none.
        soft_labels: how much a teacher's predictions count, with the figure ``teacher``; None for not at all.
        teacher: the teacher, an encoder with a head of the same role and classes. It is not trained.
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
        r_drop: float = 0.0,
        sift: SiftSpec | None = None,
        soft_labels: SoftLabelsSpec | None = None,
        teacher: Encoder | None = None,
    ) -> None:
        super().__init__()
        heads = {head.role: head for head in encoder.spec.heads if isinstance(head, Classifier)}
        if role not in heads:
            raise InvalidRequest(
                f"the encoder has no {role} head; it has: {', '.join(encoder.heads) or 'none'}"
            )
        if not 0 <= label_smoothing < 1:
            raise InvalidRequest(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        if ROLES[role].targets == "choices" and class_weights is not None:
            raise InvalidRequest("class_weights is given and choices have no classes; leave it out")
        classes = heads[role].classes
        if class_weights is not None and len(class_weights) != classes:
            raise InvalidRequest(
                f"class_weights has {len(class_weights)} numbers, and the head has {classes} classes; give "
                "one for each"
            )
        if r_drop and not has_dropout(encoder):
            raise InvalidRequest(
                f"r_drop is {r_drop:g} and all dropouts of the model are 0, so two passes are the same; set "
                "one in model.config, such as hidden_dropout_prob, or model.head_dropout, or leave r_drop out"
            )
        self.soft_labels = soft_labels
        # In a tuple, so that it is not a part of what is trained and stored.
        self._teacher = None if teacher is None else (teacher.eval().requires_grad_(False),)
        self.r_drop = r_drop
        self.sift = None if sift is None else Sift(encoder, sift)
        # SiFT has a perturbed pass whose gradient stops at the perturbation, and one with all gradients.
        self.passes = 1 + (r_drop > 0) + (sift is not None) * 5 / 3
        self.encoder = encoder
        self.role = role
        targets = ROLES[role].targets
        assert targets is not None
        self.term = ROLES[role].term
        self.loss = loss_of(targets, problem, label_smoothing)
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)

    def prepare(
        self, items: Sequence[LabeledSequence], draw: np.random.Generator, progress: float
    ) -> LabeledExample:
        """Pack the texts; nothing is random here."""
        ids, types, marks = zip(*(sequence for item in items for sequence in item.sequences()), strict=True)
        batch = PackedBatch.of_ids(ids, types, marks if any(marks) else None)
        starts = batch.layout.offsets[:-1]
        rows, targets = self.loss.rows_and_targets(items, starts)
        return LabeledExample(
            {self.term: len(rows)},
            batch.layout.token_count,
            len(ids),
            batch,
            rows_P=rows,
            targets_P=targets,
        )

    def forward(self, example: LabeledExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of losses, divided by the number of targets in the global batch."""
        logits = self._logits(example)
        loss, right = self._loss(logits, example)
        figures: dict[str, Tensor] = {}
        total, divergence = loss, partial(self._divergence, example)
        if self.training and self.r_drop:
            again = self._logits(example)
            total = loss = (loss + self._loss(again, example)[0]) / 2
            figures["r_drop"] = r_drop_divergence(logits, again, divergence)
            total = total + self.r_drop * figures["r_drop"]
        if self.training and self.soft_labels is not None:
            soft = self.soft_labels
            figures["teacher"] = soft.temperature**2 * divergence(
                self._taught(example, logits) / soft.temperature, logits / soft.temperature
            )
            total = (1 - soft.weight) * total + soft.weight * figures["teacher"]
        if self.training and self.sift is not None:
            figures["sift"] = self.sift.divergence(logits, partial(self._logits, example), divergence)
            total = total + self.sift.spec.weight * figures["sift"]
        figures = {"loss": loss} | ({} if right is None else {"accuracy": right}) | figures
        return LossOutput(
            total / max(1, totals[self.term]),
            {f"{self.term}/{name}": value.detach() for name, value in figures.items()},
        )

    def _logits(self, example: LabeledExample, encoder: Encoder | None = None) -> Tensor:
        encoder = self.encoder if encoder is None else encoder
        x_TD = encoder.encode(example.batch)
        logits = encoder.logits(self.role, x_TD, example.batch.layout)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    @torch.no_grad()
    def _taught(self, example: LabeledExample, logits: Tensor) -> Tensor:
        """The teacher's logits."""
        assert self._teacher is not None
        (teacher,) = self._teacher
        return self._logits(example, teacher.to(logits.device)).to(logits.dtype)

    def _loss(self, logits: Tensor, example: LabeledExample) -> tuple[Tensor, Tensor | None]:
        return self.loss.of(logits, example, self.class_weights)

    def _divergence(self, example: LabeledExample, first: Tensor, other: Tensor) -> Tensor:
        """How far the second prediction is from the first; see `Divergence`."""
        return self.loss.divergence(example, first, other)


def _rows(example: LabeledExample, logits: Tensor) -> Tensor:
    """The rows of the logits that have targets."""
    return torch.from_numpy(example.rows_P).to(logits.device)


def _targets(example: LabeledExample, logits: Tensor) -> Tensor:
    return torch.from_numpy(example.targets_P).to(logits.device)


def _text_of(example: LabeledExample, logits_TC: Tensor) -> Tensor:
    """The text of each token."""
    return torch.from_numpy(example.batch.layout.sequence_of_T).to(logits_TC.device)


def _question_of(example: LabeledExample, logits: Tensor) -> Tensor:
    """The question of each choice; rows of the example are the first choices."""
    of_R = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    of_R[_rows(example, logits)[1:]] = 1
    return of_R.cumsum(0)


TERM = "contrastive"
"""The term of the loss, by which its figure is named."""


@dataclass(frozen=True, eq=False)
class PairExample(Example):
    """A packed batch in which the two texts of each pair are neighbors."""

    targets_P: NDArray[np.float32]
    """The wanted cosine similarity of each pair."""


class ContrastiveObjective(Objective[LabeledSequence, PairExample]):
    """The mean squared error of cosine similarities of texts, as in SetFit (Tunstall et al. 2022).

    The same as ``CosineSimilarityLoss`` of `sentence-transformers`; a mean over the pairs of the global
    batch.

    Args:
        encoder: trained but for its heads.
        output: how states become the vector of a text.
    """

    def __init__(self, encoder: Encoder, output: PooledVector) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output

    def prepare(
        self, items: Sequence[LabeledSequence], draw: np.random.Generator, progress: float
    ) -> PairExample:
        """Pack the texts of all pairs; nothing is random here."""
        ids, types, marks = zip(*(sequence for item in items for sequence in item.sequences()), strict=True)
        batch = PackedBatch.of_ids(ids, types, marks if any(marks) else None)
        targets_P = np.stack([item.target for item in items])
        return PairExample({TERM: len(items)}, batch.layout.token_count, len(ids), batch, targets_P=targets_P)

    def forward(self, example: PairExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of squared errors, divided by the number of pairs in the global batch."""
        e_SE = embed(
            self.encoder.encode(example.batch), example.batch.layout, self.output, self.encoder.output
        )
        found_P = functional.cosine_similarity(e_SE[0::2], e_SE[1::2])
        wanted_P = torch.from_numpy(example.targets_P).to(found_P)
        loss = functional.mse_loss(found_P, wanted_P, reduction="sum")
        return LossOutput(loss / max(1, totals[TERM]), {f"{TERM}/loss": loss.detach()})
