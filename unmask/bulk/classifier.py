"""`BatchClassifier`: labels of batches of texts or pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from unmask.base.arguments import check_fraction
from unmask.bulk.task import BatchTask, TaskOutput, predicted
from unmask.errors import InvalidRequest
from unmask.tasks.classify import THRESHOLD, Classification, classifier_of, label_names
from unmask.tasks.values import LongTexts
from unmask.tasks.zero_shot import TEMPLATE, entailment_of, hypotheses


@dataclass(frozen=True)
class BatchClassifier(BatchTask):
    """Classifies batches of texts, see `BatchTask`; it adds the fields of `Classification` as columns.

    Args:
        pair_column: the column that holds the second text of each pair.
        candidate_labels: labels to choose from (zero-shot classification); None for those of the model.
        hypothesis_template, multi_label: see `Model.zero_shot`.
        threshold, truncation, overlap_tokens: see `Model.classify`.
    """

    pair_column: str | None = None
    candidate_labels: tuple[str, ...] | None = None
    hypothesis_template: str = TEMPLATE
    multi_label: bool = False
    threshold: float = THRESHOLD
    truncation: LongTexts = "window"
    overlap_tokens: int | None = None

    result: ClassVar[type | None] = Classification

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return (self.column,) if self.pair_column is None else (self.column, self.pair_column)

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return tuple(one.name for one in fields(Classification))

    def check(self) -> None:
        """See `BatchTask`."""
        head = classifier_of(self.loaded.spec, "sequence", "classify texts", self.loaded.name)
        check_fraction("threshold", self.threshold)
        if self.candidate_labels is None:
            return
        if self.pair_column is not None:
            raise InvalidRequest("pair_column and candidate_labels are both given; leave one out")
        entailment_of(head, self.loaded.name)
        hypotheses(self.candidate_labels, self.hypothesis_template)

    def map_keys(self) -> Mapping[str, Sequence[str]]:
        """See `BatchTask`."""
        head = classifier_of(self.loaded.spec, "sequence", "classify texts", self.loaded.name)
        return {"scores": self.candidate_labels or label_names(head)}

    def compute(self, given: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> TaskOutput:
        """See `BatchTask`."""
        texts, found = given[self.column], list[Classification]()
        if texts and self.candidate_labels is not None:
            found = self.loaded.zero_shot(
                texts,
                self.candidate_labels,
                hypothesis_template=self.hypothesis_template,
                multi_label=self.multi_label,
                threshold=self.threshold,
                truncation=self.truncation,
                overlap_tokens=self.overlap_tokens,
                name=name,
            )
        elif texts:
            found = self.loaded.classify(
                texts,
                None if self.pair_column is None else given[self.pair_column],
                threshold=self.threshold,
                truncation=self.truncation,
                overlap_tokens=self.overlap_tokens,
                name=name,
            )
        return predicted(found, self.outputs)
