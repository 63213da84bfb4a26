"""Classes of texts and pairs, by name, with probabilities.

Axes: W windows of a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_fraction
from unmask.errors import InvalidRequest
from unmask.families.labels import default_labels
from unmask.spec import ROLES, Classifier, EncoderSpec, PairScore, ProblemType, role_of
from unmask.tasks.logits import Coverage, WindowedLogits, windowed
from unmask.tasks.reader import Name, Reader, Ready, called
from unmask.tasks.values import LongTexts
from unmask.text.tokenizer import numbered

THRESHOLD = 0.5
"""The probability from which a label of a multi-label classifier applies, by default."""


@dataclass(frozen=True)
class Classification(Coverage):
    """The prediction for one text (or pair)."""

    label: str
    """The most probable label; of a regression, the name of its value."""
    score: float
    """The probability of `label`; of a regression, its value."""
    scores: Mapping[str, float]
    """The probability (or value) of every label, in the order of the head."""
    labels: tuple[str, ...]
    """The labels that apply: the one of `label`, or those of a multi-label classifier that reach the
    threshold; none of a regression."""


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    *,
    threshold: float = THRESHOLD,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
) -> Ready[list[Classification]]:
    """The label of each text (or pair); arguments as of `unmask.models.model.Model.classify`."""
    if reader.checkpoint.class_head is not None:
        raise InvalidRequest(
            f"{reader.name} classifies by labels that are named with the text; give labels, such as "
            "labels=['money', 'sport']"
        )
    head = classifier_of(reader.spec, "sequence", reader.name)
    check_fraction("threshold", threshold)
    refuse_shared_query(reader, pairs)
    name = called(texts, name)
    return windowed(
        "sequence",
        reader.whole(texts, pairs, truncation=truncation, name=name),
        partial(classify, head, threshold=threshold),
        max_tokens=reader.max_tokens,
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=name,
    )


def refuse_shared_query(reader: Reader, pairs: object) -> None:
    """Refuse a task that reads pairs with full attention.

    Raises:
        InvalidRequest: pairs are given, and the checkpoint's queries attend to themselves alone.
    """
    head = reader.output
    if pairs is not None and isinstance(head, PairScore) and head.shared_query:
        raise InvalidRequest(
            f"in {reader.checkpoint.source.name} tokens of a query do not attend to its document "
            "(shared_query), which is built for scores of pairs alone; use score_pairs"
        )


def classifier_of(spec: EncoderSpec, role: str, name: str) -> Classifier:
    """The classifier with that role; ``name`` is the model's in errors.

    Raises:
        InvalidRequest: the checkpoint has none; the error lists the heads that it has.
    """
    for head in spec.heads:
        if isinstance(head, Classifier) and head.role == role:
            return head
    there = ", ".join(map(role_of, spec.heads))
    raise InvalidRequest(
        f"{name} cannot {ROLES[role].does}, because its checkpoint has no {role} head "
        f"(heads: {there or 'none'}); use "
        + (
            "another checkpoint"
            if ROLES[role].targets is None
            else "a checkpoint or an adapter with one, or train one with `unmask finetune`"
        )
    )


def label_names(head: Classifier) -> tuple[str, ...]:
    """The names of a classifier's labels; LABEL_0, LABEL_1, ... if its checkpoint has none."""
    return head.labels or default_labels(head.classes)


def problem_of(head: Classifier) -> ProblemType:
    """The problem that a classifier solves; without a stated one, regression if it has a single number."""
    if head.problem_type is not None:
        return head.problem_type
    return "regression" if head.classes == 1 else "single_label_classification"


def probabilities(logits_WC: NDArray[np.floating], problem: ProblemType) -> NDArray[np.float64]:
    """Probabilities of logits, (..., C); the values of a regression unchanged."""
    logits = np.asarray(logits_WC, dtype=np.float64)
    match problem:
        case "regression":
            return logits
        case "multi_label_classification":
            return np.exp(-np.logaddexp(0.0, -logits))
        case "single_label_classification":
            return np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        case _:
            assert_never(problem)


def most_probable(p_C: NDArray[np.float64], logits_C: NDArray[np.floating]) -> int:
    """The most probable class; logits decide between probabilities that are both nearly 1, then the order."""
    return int(np.lexsort((-np.arange(len(p_C)), logits_C, p_C))[-1])


def classify(
    head: Classifier,
    texts: Sequence[WindowedLogits],
    *,
    threshold: float = THRESHOLD,
) -> list[Classification]:
    """The prediction for each text.

    The probabilities of a text that was read in windows are the mean over windows, weighted by the tokens
    that each owns. Logits of labels are divided by the head's temperature before.
    ``threshold``: the probability from which a label of a multi-label classifier applies.
    """
    names, problem = label_names(head), problem_of(head)
    predictions = []
    for text in texts:
        logits_WC = np.stack(text.logits)
        if problem != "regression":
            logits_WC = logits_WC / head.temperature
        p_WC = probabilities(logits_WC, problem)
        p_C = text.shares() @ p_WC
        best = most_probable(p_C, text.shares() @ logits_WC)
        labels: tuple[str, ...]
        match problem:
            case "single_label_classification":
                labels = (names[best],)
            case "multi_label_classification":
                labels = tuple(name for name, p in zip(names, p_C, strict=True) if p >= threshold)
            case "regression":
                labels = ()
            case _:
                assert_never(problem)
        scores = dict(zip(names, p_C.tolist(), strict=True))
        predictions.append(
            Classification(names[best], scores[names[best]], scores, labels, **vars(text.coverage))
        )
    return predictions
