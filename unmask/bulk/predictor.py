"""Predictions for batches of rows: by any method of `Model`, and by the two that are used most."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from inspect import signature
from typing import Any, get_args

from unmask.base.arguments import check_choice
from unmask.bulk.task import BatchTask, TaskOutput
from unmask.errors import InvalidRequest
from unmask.tasks.classify import THRESHOLD, Classification, classifier_of, label_names
from unmask.tasks.logits import Coverage
from unmask.tasks.tag import Tagging
from unmask.tasks.values import Aggregation, LongTexts, SchemeName
from unmask.tasks.zero_shot import TEMPLATE


class PredictionTask(BatchTask):
    """A task that adds the fields of one prediction for each row as columns."""

    @property
    @abstractmethod
    def result(self) -> type[Coverage]:
        """See `BatchTask`."""

    @abstractmethod
    def predict(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> Sequence[Any]:
        """The prediction for each row, from the values of rows by column; see `BatchTask.compute`."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return tuple(column.name for column in fields(self.result))

    def check(self) -> None:
        """See `BatchTask`."""
        self.predict({column: [] for column in self.inputs}, str)

    def map_keys(self) -> Mapping[str, Sequence[str]]:
        """See `BatchTask`."""
        if not issubclass(self.result, Classification):
            return {}
        head = classifier_of(self.loaded.spec, "sequence", self.loaded.name)
        return {"scores": label_names(head)}

    def compute(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> TaskOutput:
        """See `BatchTask`."""
        predictions = self.predict(rows, name) if rows[self.column] else []
        values = [asdict(prediction) for prediction in predictions]
        return TaskOutput(
            {column: [value[column] for value in values] for column in self.outputs},
            sum(prediction.tokens_read for prediction in predictions),
            sum(prediction.truncated_tokens > 0 for prediction in predictions),
        )


@dataclass(frozen=True)
class BatchPredictor(PredictionTask):
    """Calls a method of `Model` for batches of rows, see `BatchTask`.

    ``BatchPredictor(method="choose", column="question", columns={"choices": "options"})`` calls
    ``model.choose(questions, choices=options)`` and adds the fields of `Choice` as columns.

    Args:
        method: a method whose results say how much they read, such as ``"answer"`` or ``"choose"``; it reads
            `column` as its first argument.
        columns: the columns of its arguments that have a value for each row, by the argument's name.
        options: its other arguments, the same for all rows.
    """

    method: str = "classify"
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> type[Coverage]:
        """See `BatchTask`.

        Raises:
            InvalidRequest: there is no such method, or its results do not say how much they read.
        """
        methods = predicting_methods()
        check_choice("method", self.method, sorted(methods))
        return methods[self.method]

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return (self.column, *self.columns.values())

    def map_keys(self) -> Mapping[str, Sequence[str]]:
        """See `BatchTask`."""
        named = {"zero_shot": "candidate_labels", "classify": "labels"}.get(self.method, "")
        labels = self.options.get(named)
        return super().map_keys() if labels is None else {"scores": labels}

    def predict(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> Sequence[Any]:
        """See `PredictionTask`."""
        _ = self.result  # refuses what is no such method
        if self.options.get("vectors"):
            raise InvalidRequest("vectors are not written over shards; leave them out of options")
        arguments = {argument: rows[column] for argument, column in self.columns.items()}
        method: Callable[..., Sequence[Any]] = getattr(self.loaded, self.method)
        try:
            signature(method).bind(rows[self.column], **arguments, **self.options, name=name)
        except TypeError as error:
            raise InvalidRequest(
                f"{self.method} cannot be called so: {error}; give its arguments in columns= and options="
            ) from None
        return method(rows[self.column], **arguments, **self.options, name=name)


@cache
def predicting_methods() -> Mapping[str, type[Coverage]]:
    """The methods of `Model` that predict something for each text, and what."""
    from unmask.models.model import Model

    kinds = {}
    for name, method in vars(Model).items():
        kind = get_args(signature(method).return_annotation)[:1] if callable(method) else ()
        if kind and isinstance(kind[0], type) and issubclass(kind[0], Coverage):
            kinds[name] = kind[0]
    return kinds


@dataclass(frozen=True)
class BatchClassifier(PredictionTask):
    """Classifies batches of texts or pairs, see `BatchTask`; it adds the fields of `Classification`.

    Args:
        pair_column: the column that holds the second text of each pair.
        candidate_labels: labels to choose from, for a model of GLiClass or entailment; None for those of the
            model.
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

    @property
    def result(self) -> type[Coverage]:
        """See `BatchTask`."""
        return Classification

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return (self.column,) if self.pair_column is None else (self.column, self.pair_column)

    def map_keys(self) -> Mapping[str, Sequence[str]]:
        """See `BatchTask`."""
        return super().map_keys() if self.candidate_labels is None else {"scores": self.candidate_labels}

    def predict(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> Sequence[Any]:
        """See `PredictionTask`."""
        pairs = None if self.pair_column is None else rows[self.pair_column]
        if self.candidate_labels is None:
            return self.loaded.classify(
                rows[self.column],
                pairs,
                threshold=self.threshold,
                truncation=self.truncation,
                overlap_tokens=self.overlap_tokens,
                name=name,
            )
        if pairs is not None:
            raise InvalidRequest("pair_column and candidate_labels are both given; leave one out")
        return self.loaded.zero_shot(
            rows[self.column],
            self.candidate_labels,
            hypothesis_template=self.hypothesis_template,
            multi_label=self.multi_label,
            threshold=self.threshold,
            truncation=self.truncation,
            overlap_tokens=self.overlap_tokens,
            name=name,
        )


@dataclass(frozen=True)
class BatchTagger(PredictionTask):
    """Finds entities in batches of texts, see `BatchTask`; it adds the fields of `Tagging` as columns.

    A column of texts may hold lists of words instead; offsets are then those in the words joined by spaces.

    Args:
        words: add every word with its label, too; it is as much as all the texts.
        scheme: write labels of entities in this scheme; None for that of the model.
        aggregation, truncation, overlap_tokens, labels, threshold, nested, multi_label: see `Model.tag`. With
            labels, ``words`` and ``scheme`` have no meaning.
    """

    words: bool = False
    scheme: SchemeName | None = None
    aggregation: Aggregation = "first"
    truncation: LongTexts = "window"
    overlap_tokens: int | None = None
    labels: tuple[str, ...] | None = None
    threshold: float | Mapping[str, float] = THRESHOLD
    nested: bool = False
    multi_label: bool = False

    @property
    def result(self) -> type[Coverage]:
        """See `BatchTask`."""
        return Tagging

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return tuple(column for column in super().outputs if self.words or column != "words")

    def predict(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> Sequence[Any]:
        """See `PredictionTask`."""
        if self.scheme is not None:
            check_choice("scheme", self.scheme, get_args(SchemeName))
        if self.labels is not None and (self.words or self.scheme is not None):
            raise InvalidRequest("labels are of entities, not of words; leave words and scheme out")
        taggings = self.loaded.tag(
            rows[self.column],
            aggregation=self.aggregation,
            truncation=self.truncation,
            overlap_tokens=self.overlap_tokens,
            labels=self.labels,
            threshold=self.threshold,
            nested=self.nested,
            multi_label=self.multi_label,
            name=name,
        )
        return taggings if self.scheme is None else [tagging.in_scheme(self.scheme) for tagging in taggings]
