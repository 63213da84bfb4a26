"""`BatchTagger`: entities of batches of texts, or labels of their words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from unmask.base.arguments import check_choice
from unmask.bulk.task import BatchTask, TaskOutput, predicted
from unmask.tasks.classify import classifier_of
from unmask.tasks.tag import Tagging
from unmask.tasks.values import Aggregation, LongTexts, SchemeName


@dataclass(frozen=True)
class BatchTagger(BatchTask):
    """Finds entities in batches of texts, see `BatchTask`; it adds the fields of `Tagging` as columns.

    A column of texts may hold lists of words instead; offsets are then those in the words joined by spaces.

    Args:
        words: add every word with its label, too; it is as much as all the texts.
        scheme: write labels of entities in this scheme; None for that of the model.
        aggregation, truncation, overlap_tokens: see `Model.tag`.
    """

    words: bool = False
    scheme: SchemeName | None = None
    aggregation: Aggregation = "first"
    truncation: LongTexts = "window"
    overlap_tokens: int | None = None

    result: ClassVar[type | None] = Tagging

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return tuple(one.name for one in fields(Tagging) if self.words or one.name != "words")

    def check(self) -> None:
        """See `BatchTask`."""
        classifier_of(self.loaded.spec, "tokens", "label words", self.loaded.name)
        check_choice("aggregation", self.aggregation, get_args(Aggregation))
        if self.scheme is not None:
            check_choice("scheme", self.scheme, get_args(SchemeName))

    def compute(self, given: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> TaskOutput:
        """See `BatchTask`."""
        texts, found = given[self.column], list[Tagging]()
        if texts:
            found = self.loaded.tag(
                texts,
                aggregation=self.aggregation,
                truncation=self.truncation,
                overlap_tokens=self.overlap_tokens,
                name=name,
            )
        if self.scheme is not None:
            found = [one.in_scheme(self.scheme) for one in found]
        return predicted(found, self.outputs)
