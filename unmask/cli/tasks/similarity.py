"""``unmask similarity``: how similar two texts are, or the two texts on each line of a file."""

import json as json_format
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.inputs import Inputs, LineReader, encode_lines, line_name, require_texts, warn_beyond_training
from unmask.cli.options import (
    RUN,
    BlankOption,
    JsonOption,
    ModelOption,
    PoolingOption,
    RunOptions,
    TruncationOption,
)
from unmask.cli.output import print_json, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.errors import EmptyText, InvalidRequest, InvalidText
from unmask.tasks.prompts import chosen_prompt
from unmask.tasks.similarity import Metric
from unmask.text import Encoding, Line, Truncation, read_lines

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.spec import PooledVector

Fields = tuple[str, str]
"""The JSON keys of the two texts of a pair."""


def similarity(
    text: Annotated[
        str | None, Parameter(help="the first text; - reads standard input, one pair per line")
    ] = None,
    other: Annotated[str | None, Parameter(help="the second text")] = None,
    *,
    file: Annotated[
        str | None, Parameter(help="read this file instead: two texts per line, separated by a tab")
    ] = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    metric: Annotated[
        Metric, Parameter(help="how vectors are compared; distances are negated: larger is more similar")
    ] = "cosine",
    truncation: TruncationOption = "error",
    blank: BlankOption = "error",
    fields: Annotated[
        Fields | None,
        Parameter(negative="", help="read each line as JSON and take the texts under these two keys"),
    ] = None,
    pooling: PoolingOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the embeddings of two texts, or of the two texts on every line of a file.

    Prints one score per pair, or with --json one JSON object. Lines are streamed: a file may have any size.
    """
    source = _source(text, other, file)
    if source is None:
        assert text is not None
        assert other is not None
        if fields is not None or blank != "error":
            raise InvalidRequest("--fields and --blank are for lines; leave them out, or give --file FILE")
        loaded = run.load(model)
        scorer = _Scorer(loaded, loaded.embedding_head(pooling), metric, json)
        scorer.compare_two(text, other, truncation)
        return
    with Inputs([source], partial(read_lines, blank=blank), reread=False) as given:
        # Every line of a file is checked before the model is loaded.
        total = sum(bool(_pair(line, fields)) for line in given.lines()) if given.rereadable else 0
        loaded = run.load(model)
        scorer = _Scorer(loaded, loaded.embedding_head(pooling), metric, json)
        scorer.compare_lines(LineReader(given.lines()), fields, truncation, total)


def _source(text: str | None, other: str | None, file: str | None) -> str | None:
    """The file or standard input that the pairs are read from; None if two texts are given.

    Raises:
        InvalidRequest: the arguments are neither of these.
    """
    match [text is not None, other is not None, file is not None]:
        case [True, True, False] if STANDARD_INPUT not in (text, other):
            return None
        case [True, False, False] if text == STANDARD_INPUT:
            return text
        case [False, False, True]:
            return file
        case _:
            raise InvalidRequest("give two texts, or --file FILE or - for lines with two texts each")


def _pair(line: Line, fields: Fields | None) -> tuple[Line, Line]:
    """The two texts of a line.

    Raises:
        InvalidText: it is not two texts separated by a tab, or not a JSON object with them.
        EmptyText: a text of the pair is blank.
    """
    if fields is None:
        texts = line.text.split("\t")
        if len(texts) != 2:
            raise InvalidText(
                f"{line} has {len(texts) - 1} tabs; write two texts with one tab between them, or name the "
                "keys of JSON lines with --fields"
            )
    else:
        texts = _under_keys(line, fields)
    if not all(text.strip() for text in texts):
        raise EmptyText(f"{line} holds a blank text; give two texts, or remove the line")
    first, second = (replace(line, text=text) for text in texts)
    return first, second


def _under_keys(line: Line, fields: Fields) -> list[str]:
    try:
        record = json_format.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise InvalidText(f"{line} is not JSON: {error}") from None
    texts = []
    for key in fields:
        text = record.get(key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise InvalidText(f"{line} has no string under {key!r}; name other keys with --fields")
        texts.append(text)
    return texts


@dataclass(frozen=True)
class _Scorer:
    """Compares pairs of texts and prints the scores."""

    loaded: "Model"
    head: "PooledVector"
    metric: Metric
    json: bool

    @property
    def prompt(self) -> str:
        """What the checkpoint puts before every text."""
        return chosen_prompt(self.head, None, None, self.loaded.name)

    def compare_two(self, text: str, other: str, truncation: Truncation) -> None:
        name = ("the first text", "the second text").__getitem__
        before = self.prompt
        texts = [before + one if one.strip() else one for one in (text, other)]
        encodings = self.loaded.tokenize(texts, truncation=truncation, name=name)
        (score,) = self._scores(encodings, name)
        self._show(text, other, score, {})

    def compare_lines(
        self, reader: LineReader, fields: Fields | None, truncation: Truncation, total: int
    ) -> None:
        """Show the score of each line as soon as its part of the input is computed."""
        longest = 0
        with progress("comparing", total) as report:
            while part := reader.take():
                texts = [text for line in part for text in _pair(line, fields)]
                encodings = encode_lines(self.loaded, texts, truncation, self.prompt)
                longest = max(longest, *map(len, encodings))
                scores = self._scores(encodings, partial(line_name, texts))
                for first, second, score in zip(texts[::2], texts[1::2], scores, strict=True):
                    self._show(first.text, second.text, score, {"source": first.source, "line": first.number})
                sys.stdout.flush()
                report(reader.done, total)
        require_texts(reader.done)
        warn_beyond_training(self.loaded, longest)

    def _scores(self, encodings: Sequence[Encoding], name: Callable[[int], str]) -> list[float]:
        """The score of each two consecutive texts."""
        embeddings_SE = self.loaded.embed_encodings(encodings, self.head, prompt=self.prompt, name=name)
        return [
            float(self.loaded.similarity(a_E, b_E, metric=self.metric)[0, 0])
            for a_E, b_E in zip(embeddings_SE[::2], embeddings_SE[1::2], strict=True)
        ]

    def _show(self, text: str, other: str, score: float, place: Mapping[str, object]) -> None:
        """Print one score; ``place`` is where the pair was read, for JSON."""
        if not self.json:
            print(f"{score:.4f}")
            return
        named = {"model": self.loaded.name, "revision": self.loaded.revision, "metric": self.metric}
        print_json({**named, **place, "text": text, "other": other, "score": score})
