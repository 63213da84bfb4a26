"""Classes that are named when a text is classified: by a head that judges whether a text entails another, or
by GLiClass.

Each class becomes a hypothesis, such as "This example is sport.", and the text the premise (Yin, Hay & Roth
2019), with the arithmetic of the zero-shot pipeline of `transformers`.

Axes: W windows of a text; A candidate labels.
"""

from collections.abc import Sequence
from typing import Any

from unmask.base.arguments import check_flag, check_fraction
from unmask.errors import InvalidRequest, quoted
from unmask.spec import Classifier
from unmask.tasks import classify, named_classes
from unmask.tasks.aligned import AlignedLogits, prepare_aligned
from unmask.tasks.classify import (
    THRESHOLD,
    Classification,
    classifier_of,
    label_names,
    most_probable,
    probabilities,
)
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.values import LongTexts, distinct_labels
from unmask.text.tokenizer import numbered

TEMPLATE = "This example is {}."
"""The hypothesis by default; the candidate label replaces ``{}``."""


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    candidate_labels: Sequence[str],
    *,
    hypothesis_template: str = TEMPLATE,
    multi_label: bool = False,
    threshold: float = THRESHOLD,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
    argument: str = "candidate_labels",
) -> Ready[list[Classification]]:
    """Classes that are named with the texts; arguments as of `unmask.models.model.Model.zero_shot`.

    ``argument`` is the name of the labels in messages.
    """
    if reader.checkpoint.class_head is not None:
        if hypothesis_template != TEMPLATE:
            raise InvalidRequest(
                f"hypothesis_template is given, and {reader.name} reads labels as they are; leave it out"
            )
        return named_classes.prepare(
            reader,
            texts,
            candidate_labels,
            multi_label=multi_label,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
            argument=argument,
        )
    head = classifier_of(reader.spec, "sequence", reader.name)
    classes = entailment_of(head, reader.name)
    check_flag("multi_label", multi_label)
    check_fraction("threshold", threshold)
    labels = distinct_labels(argument, candidate_labels)
    seconds = hypotheses(labels, hypothesis_template)
    firsts = several("texts", texts)
    return prepare_aligned(
        reader,
        "sequence",
        firsts,
        [seconds] * len(firsts),
        lambda logits: zero_shot(logits, labels, classes, multi_label=bool(multi_label), threshold=threshold),
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=called(texts, name),
        second="hypothesis",
    )


def prepare_classes(
    reader: Reader,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    *,
    labels: Sequence[str] | None = None,
    multi_label: bool = False,
    **options: Any,
) -> Ready[list[Classification]]:
    """`prepare` with labels, `unmask.tasks.classify.prepare` without; arguments as of `Model.classify`."""
    if labels is None:
        if multi_label:
            raise InvalidRequest("multi_label is for labels that you name; give labels, or leave it out")
        return classify.prepare(reader, texts, pairs, **options)
    if pairs is not None:
        raise InvalidRequest("pairs and labels are both given; leave one out")
    return prepare(reader, texts, labels, multi_label=multi_label, argument="labels", **options)


def hypotheses(candidate_labels: Sequence[str], template: str) -> list[str]:
    """The hypothesis of each candidate label.

    Raises:
        InvalidRequest: the template does not have one place for it.
    """
    if not isinstance(template, str) or template.count("{}") != 1:
        raise InvalidRequest(
            f"hypothesis_template is {quoted(template)}; it must have one {{}}, which the label replaces"
        )
    return [template.replace("{}", label) for label in candidate_labels]


def entailment_of(head: Classifier, name: str) -> tuple[int, int]:
    """The classes for entailment and for contradiction.

    Entailment is the first label that begins with "entail", as in `transformers`. Contradiction is the one
    that begins with "contradict"; without one, the first class, or the last if entailment is the first.

    Raises:
        InvalidRequest: no label begins so, or there is no other label.
    """
    labels = [label.lower() for label in label_names(head)]
    entailment = next((place for place, label in enumerate(labels) if label.startswith("entail")), None)
    if entailment is None or len(labels) < 2:
        raise InvalidRequest(
            f"{name} cannot judge whether a text entails another, because none of its labels begins with "
            f'"entail" beside another label (labels: {", ".join(label_names(head))}); use a checkpoint '
            "trained on natural language inference, or one of GLiClass"
        )
    contradiction = next(
        (place for place, label in enumerate(labels) if label.startswith("contradict")), None
    )
    position = len(labels) - 1 if entailment == 0 else 0
    return entailment, position if contradiction is None else contradiction


def zero_shot(
    texts: Sequence[AlignedLogits],
    candidate_labels: Sequence[str],
    classes: tuple[int, int],
    *,
    multi_label: bool = False,
    threshold: float = THRESHOLD,
) -> list[Classification]:
    """The prediction for each text.

    Args:
        texts: logits of each text with the hypothesis of each label.
        candidate_labels: the labels, in that order.
        classes: see `entailment_of`.
        multi_label: whether labels are independent: the probability of each is the softmax of entailment
            over contradiction. Otherwise it is the softmax of entailment over all labels. A single label is
            always treated as independent, as in `transformers`.
        threshold: the probability from which a label applies, with ``multi_label``.

    Probabilities of a text that was read in windows are the mean over windows, weighted by the text's tokens
    that each owns.
    """
    entailment, contradiction = classes
    independent = multi_label or len(candidate_labels) == 1
    predictions = []
    for text in texts:
        preferred_WA = text.logits_WAC[..., entailment]
        if independent:
            both = text.logits_WAC[..., [contradiction, entailment]]
            p_WA = probabilities(both, "single_label_classification")[..., 1]
            preferred_WA = preferred_WA - text.logits_WAC[..., contradiction]
        else:
            p_WA = probabilities(preferred_WA, "single_label_classification")
        p_A = text.parts.shares() @ p_WA
        scores = dict(zip(candidate_labels, p_A.tolist(), strict=True))
        best = candidate_labels[most_probable(p_A, text.parts.shares() @ preferred_WA)]
        labels = tuple(label for label, p in scores.items() if p >= threshold) if independent else (best,)
        predictions.append(Classification(best, scores[best], scores, labels, **vars(text.parts.coverage)))
    return predictions
