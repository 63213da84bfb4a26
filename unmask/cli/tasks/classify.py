"""``unmask classify``: the label of a text or pair, or of each input of a file."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.items import Item, pair_of, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, safe
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.bulk import BULK, BulkOptions, task_settings
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    LongTextsOption,
    OverlapOption,
    TextOption,
    named,
    predict_items,
    predict_text,
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
    given: InputOptions = INPUT,
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
        Parameter(help="labels to choose from, separated by commas, for a model that judges entailment"),
    ] = None,
    hypothesis_template: Annotated[
        str | None,
        Parameter(help='with --candidate-labels: what a label states, by default "This example is {}."'),
    ] = None,
    multi_label: Annotated[
        bool, Parameter(negative="", help="with --candidate-labels: several labels, or none, may apply")
    ] = False,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    file: FileOptions = FILE,
    bulk: BulkOptions = BULK,
    json: JsonOption = False,
) -> None:
    """Predict the label of a text, or of every input of a file, with its probability.

    Reads lines, or JSON lines, CSV, TSV and Parquet, of which --field names the column of the text. Prints
    the label, a tab and the probability, or the value of a regression alone; of several labels those that
    apply, and the largest probability. With --json, one object per text. Input of any size is streamed. To
    resume a stopped run with --output, give the same command again. With --candidate-labels, the labels are
    those given (zero-shot classification). With --engine, several processes read shards of the file, and
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
            **task_settings(model, run, given.field, given.blank),
            pair_column=pair_field,
            candidate_labels=None if labels is None else tuple(labels),
            hypothesis_template=hypothesis_template or TEMPLATE,
            multi_label=multi_label,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
        )
        file.run_bulk(task, given.files(text), bulk, json=json)
        return
    json = json or file.json

    def predict(
        loaded: "Model", items: Sequence[Item], name: Callable[[int], str], progress: Progress
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

    def row(loaded: "Model", item: Item, found: "Classification") -> str:
        if not json:
            return _row(found, labels is None)
        pair = {} if item.second is None or pairs else {"pair": item.second}
        shown = item.text if pairs else item.value
        return named(loaded, item, text=shown, **pair, **plain(found))

    settings = (threshold, truncation, overlap_tokens, labels, hypothesis_template, multi_label, json)
    job = Job("classifying", run, model, predict, row, settings, in_tabs=not json)
    if text is not None and text != STANDARD_INPUT:
        given.refuse_for_a_text()
        first, second = pair_of(text, "the text") if pairs else (text, None)
        predict_text(job, Item(text, "", 0, "the text", None, first, second))
    else:
        predict_items(job, given.given(("lines", *TABLES), pair_field, pairs), file)


def _candidates(
    given: str | None, template: str | None, *, multi_label: bool, pairs: bool
) -> list[str] | None:
    """The labels of zero-shot classification; None without them.

    Raises:
        InvalidRequest: an option belongs to them and they are not given, or the reverse.
    """
    if given is None:
        if template is not None or multi_label:
            option = "--multi-label" if template is None else "--hypothesis-template"
            raise InvalidRequest(f"{option} is given without --candidate-labels; name the labels too")
        return None
    if pairs:
        raise InvalidRequest("--pairs or --pair-field and --candidate-labels are both given; leave one out")
    return [label.strip() for label in given.split(",")]


def _row(found: "Classification", of_head: bool) -> str:
    """The value of a regression alone; or the labels that apply, and the largest probability."""
    if of_head and len(found.scores) == 1:
        return f"{found.score:.4f}\n"
    return f"{safe(', '.join(found.labels) or 'none')}\t{found.score:.4f}\n"
