"""``unmask tag``: the entities of a text, or the label of each of its words."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import RUN, BlankOption, FieldOption, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, print_json, safe
from unmask.cli.predict import FileOption, LongTextsOption, OverlapOption, TextOption, predict_lines
from unmask.tasks.values import Aggregation

if TYPE_CHECKING:
    from unmask.loaded import Model
    from unmask.tasks.tag import Tagging


def tag(
    text: TextOption = None,
    *,
    file: FileOption = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    aggregation: Annotated[
        Aggregation, Parameter(help="label a word by its first token, or by the mean over its tokens")
    ] = "first",
    words: Annotated[
        bool, Parameter(negative="", help="print every word with its label, also where there are entities")
    ] = False,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    blank: BlankOption = "error",
    field: FieldOption = None,
    json: JsonOption = False,
) -> None:
    """Find the entities of a text, or of every line; if the model's labels are not of entities, label words.

    Prints start, end, label, probability and text of each entity or word, separated by tabs, with a blank
    line after each text; with --json one object per text. Offsets count characters of the text. Without a
    model, the default model reads with its adapter "names": persons, organizations and places.
    """

    def predict(loaded: "Model", texts: Sequence[str], name: Callable[[int], str]) -> "Sequence[Tagging]":
        return loaded.tag(
            texts,
            aggregation=aggregation,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )

    def show(loaded: "Model", line: str, found: "Tagging", place: Mapping[str, object]) -> None:
        if json:
            result = plain(found)
            if not words:
                del result["words"]
            print_json({"model": loaded.name, "revision": loaded.revision, **place, "text": line, **result})
            return
        for one in found.words if words or not found.has_entities else found.entities:
            print(f"{one.start}\t{one.end}\t{safe(one.label)}\t{one.score:.4f}\t{safe(one.text)}")
        print()

    predict_lines(
        text,
        file,
        field=field,
        blank=blank,
        verb="tagging",
        load=lambda: run.load(model, "names"),
        predict=predict,
        show=show,
    )
