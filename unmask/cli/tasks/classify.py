"""``unmask classify``: the label of a text or pair, or of each input of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.arguments import comma_separated
from unmask.cli.items import Item, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import marked, plain, tabbed
from unmask.cli.tasks.bulk import BULK, BulkOptions, task_settings
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    LongTextsOption,
    Name,
    OverlapOption,
    Shown,
    TextOption,
    predict,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.classify import Classification


def classify(
    text: TextOption = None,
    *,
    source: InputOptions = INPUT,
    pair_field: Annotated[
        str | None, Parameter(help="column (or key) of the second text of each pair, in a table")
    ] = None,
    pairs: Annotated[
        bool, Parameter(negative="", help="each text is a pair: two texts separated by a tab")
    ] = False,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    threshold: Annotated[
        float,
        Parameter(help="probability from which a label of a multi-label model, or of --multi-label, applies"),
    ] = 0.5,
    candidate_labels: Annotated[
        str | None,
        Parameter(
            name=("--labels", "--candidate-labels"),
            help="labels to choose from, separated by commas (those that hold commas in double quotes), "
            "for a model of GLiClass or entailment",
        ),
    ] = None,
    hypothesis_template: Annotated[
        str | None,
        Parameter(help='with --labels and entailment: what a label states, else "This example is {}."'),
    ] = None,
    multi_label: Annotated[
        bool, Parameter(negative="", help="with --labels: several labels, or none, may apply")
    ] = False,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    target: FileOptions = FILE,
    bulk: BulkOptions = BULK,
    json: JsonOption = False,
) -> None:
    """Predict the label of a text, or of every input of a file, with its probability.

    Reads lines, or JSON lines, CSV, TSV and Parquet, of which --field names the column of the text. Prints
    the label, a tab and the probability, or the value of a regression alone; of several labels those that
    apply, and the largest probability. With --json, one object per text. Input of any size is streamed. To
    resume a stopped run with --output, give the same command again. With --labels money,sport, the labels are
    those named (zero-shot classification). With --engine, several processes read shards of the file, and
    --output is a folder.
    """
    bulk.check()
    labels = _candidates(
        candidate_labels, hypothesis_template, multi_label=multi_label, pairs=pairs or pair_field is not None
    )
    if bulk.engine is not None:
        from unmask.bulk import BatchClassifier
        from unmask.tasks.zero_shot import TEMPLATE

        if pairs:
            raise InvalidRequest("--pairs is for lines with a tab; with --engine, give --pair-field instead")
        task = BatchClassifier(
            **task_settings(model, run, source.field, source.blank),
            pair_column=pair_field,
            candidate_labels=None if labels is None else tuple(labels),
            hypothesis_template=hypothesis_template or TEMPLATE,
            multi_label=multi_label,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
        )
        target.run_bulk(task, source.files(text), bulk, json=json)
        return

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Classification]":
        texts = [text_of(item) for item in items]
        if labels is not None:
            from unmask.tasks.zero_shot import TEMPLATE

            return loaded.zero_shot(
                texts,
                labels,
                hypothesis_template=hypothesis_template or TEMPLATE,
                multi_label=multi_label,
                threshold=threshold,
                truncation=truncation,
                overlap_tokens=overlap_tokens,
                progress=progress,
                name=name,
            )
        seconds = [item.second for item in items if item.second is not None]
        return loaded.classify(
            texts,
            seconds or None,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            progress=progress,
            name=name,
        )

    def details(item: Item, result: "Classification") -> dict[str, object]:
        pair = {} if item.second is None or pairs else {"pair": item.second}
        return {"text": item.text if pairs else item.value, **pair, **plain(result)}

    def cells(result: "Classification") -> tuple[str, ...]:
        """The value of a regression alone; or the labels that apply, and the largest probability."""
        if labels is None and len(result.scores) == 1:
            return (f"{result.score:.4f}",)
        return ", ".join(result.labels) or "none", f"{result.score:.4f}"

    def shown(item: Item, result: "Classification") -> Shown:
        texts = str(item.value) if item.second is None else f"{item.value}  |  {item.second}"
        return Shown(marked(texts), [cells(result)], ("bold cyan",))

    job = Job(
        verb="classifying",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, result: tabbed([cells(result)]),
        details=details,
        shown=shown,
        json=json or target.json,
        settings=(threshold, truncation, overlap_tokens, labels, hypothesis_template, multi_label),
    )
    predict(job, source.items(text, ("lines", *TABLES), pair_field, pairs), target)


def _candidates(
    names: str | None, template: str | None, *, multi_label: bool, pairs: bool
) -> list[str] | None:
    """The labels of zero-shot classification; None without them.

    Raises:
        InvalidRequest: an option belongs to them and they are not given, or the reverse.
    """
    if names is None:
        if template is not None or multi_label:
            option = "--multi-label" if template is None else "--hypothesis-template"
            raise InvalidRequest(f"{option} is given without --labels; name the labels too")
        return None
    if pairs:
        raise InvalidRequest("--pairs or --pair-field and --labels are both given; leave one out")
    return comma_separated(names)
