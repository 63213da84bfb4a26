"""``unmask classify``: the label of a text or pair, or of each line of a file."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import RUN, BlankOption, FieldOption, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, print_json, safe
from unmask.cli.predict import FileOption, LongTextsOption, OverlapOption, TextOption, predict_lines
from unmask.errors import InvalidRequest, InvalidText

if TYPE_CHECKING:
    from unmask.loaded import Model
    from unmask.tasks.classify import Classification


def classify(
    text: TextOption = None,
    *,
    file: FileOption = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    pairs: Annotated[
        bool, Parameter(negative="", help="each text is a pair: two texts separated by a tab")
    ] = False,
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
    blank: BlankOption = "error",
    field: FieldOption = None,
    json: JsonOption = False,
) -> None:
    """Predict the label of a text, or of every line, with its probability.

    Prints the label, a tab and the probability, or the value of a regression alone; of several labels those
    that apply, and the largest probability. With --json, one object per text. Lines are streamed, so a file
    may have any size. With --candidate-labels, the labels are those given (zero-shot classification).
    """
    labels = _candidates(candidate_labels, hypothesis_template, multi_label=multi_label, pairs=pairs)

    def predict(
        loaded: "Model", texts: Sequence[str], name: Callable[[int], str]
    ) -> "Sequence[Classification]":
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
                name=name,
            )
        seconds = None
        if pairs:
            texts, seconds = _split(texts, name)
        return loaded.classify(
            texts,
            seconds,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )

    def show(loaded: "Model", line: str, found: "Classification", place: Mapping[str, object]) -> None:
        if json:
            named = {"model": loaded.name, "revision": loaded.revision, **place}
            print_json({**named, "text": line, **plain(found)})
        else:
            print(_row(found, labels is None))

    predict_lines(
        text,
        file,
        field=field,
        blank=blank,
        verb="classifying",
        load=lambda: run.load(model),
        predict=predict,
        show=show,
    )


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
        raise InvalidRequest("--pairs and --candidate-labels are both given; leave one out")
    return [label.strip() for label in given.split(",")]


def _row(found: "Classification", of_head: bool) -> str:
    """The value of a regression alone; or the labels that apply, and the largest probability."""
    if of_head and len(found.scores) == 1:
        return f"{found.score:.4f}"
    return f"{safe(', '.join(found.labels) or 'none')}\t{found.score:.4f}"


def _split(texts: Sequence[str], name: Callable[[int], str]) -> tuple[list[str], list[str]]:
    """The first and the second text of each pair.

    Raises:
        InvalidText: a line does not have exactly one tab.
    """
    split = [text.split("\t") for text in texts]
    for index, parts in enumerate(split):
        if len(parts) != 2:
            raise InvalidText(
                f"{name(index)} has {len(parts) - 1} tabs; write two texts with one tab between them"
            )
    return [first for first, _ in split], [second for _, second in split]
