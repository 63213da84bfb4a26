"""The work of ``unmask embed``: lines to rows in parts, counters, and the fingerprint of a run."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from unmask.cli.lines import LineReader, Survey, encode_lines, line_name
from unmask.cli.tasks.embed_rows import RowFormat
from unmask.errors import TextTooLong
from unmask.tasks import Progress
from unmask.tasks.quantize import Precision, quantize
from unmask.text import Encoding, Line, Truncation

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.spec import PooledVector

LISTED = 1000
"""Truncated texts that the summary lists; all of them are counted."""
PARTS_CHECKED = 10
"""Parts that are searched for more overlong texts after the first one is found."""


@dataclass(frozen=True)
class TruncatedText:
    """One text that was longer than the model's maximum."""

    source: str
    line: int
    original_tokens: int | None
    """None if they were not all counted."""
    kept_tokens: int


@dataclass
class Tally:
    """Counters of a run."""

    tokens: int = 0
    longest: int = 0
    truncated_texts: int = 0
    truncated: list[TruncatedText] = field(default_factory=list)

    def add(self, line: Line, encoding: Encoding) -> None:
        """Count one text."""
        self.tokens += len(encoding)
        self.longest = max(self.longest, len(encoding))
        if encoding.truncated_tokens:
            self.truncated_texts += 1
            if len(self.truncated) < LISTED:
                total = encoding.original_tokens if encoding.counted_whole else None
                self.truncated.append(TruncatedText(line.source, line.number, total, len(encoding)))


class EmbedRun:
    """Embeds the texts of a reader, part by part."""

    def __init__(
        self,
        loaded: "Model",
        head: "PooledVector",
        reader: LineReader,
        *,
        survey: Survey | None,
        truncation: Truncation,
        form: RowFormat,
        prompt: str = "",
        precision: Precision = "float32",
    ) -> None:
        self.loaded, self.head, self.reader, self.survey = loaded, head, reader, survey
        self.truncation: Truncation = truncation
        self.form, self.prompt, self.precision = form, prompt, precision
        self.total = survey.texts if survey else 0
        """0 if unknown."""
        self.metrics = Tally()

    def fingerprint(self, of_settings: str, truncation: Truncation, rows: int) -> str:
        """Fingerprint of the first rows; the reader advances to their end."""
        self.reader.skip_to(rows)
        parts = (of_settings, truncation, self.reader.digest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def rows(self, report: Progress) -> Iterator[tuple[bytes, int]]:
        """Output bytes, part by part, with the number of rows in each.

        Raises:
            TextError: a text is too long or has no words.
        """
        while True:
            first, part = self.reader.done, self.reader.take()
            if not part:
                return
            encodings = self._encode(part)
            for line, encoding in zip(part, encodings, strict=True):
                self.metrics.add(line, encoding)
            embeddings_SE = self.loaded.embed_encodings(
                encodings,
                self.head,
                prompt=self.prompt,
                progress=partial(_forward, report, first, self.total),
                name=partial(line_name, part),
            )
            yield self.form.rows(part, encodings, quantize(embeddings_SE, self.precision)), len(part)

    def _encode(self, part: list[Line]) -> list[Encoding]:
        try:
            return encode_lines(self.loaded, part, self.truncation, self.prompt)
        except TextTooLong as error:
            raise self._with_others(error, part) from None

    def _with_others(self, error: TextTooLong, part: list[Line]) -> TextTooLong:
        """The error of the first overlong text, with the number of overlong texts after it."""
        long, checked, parts = 0, 0, 1
        while part:
            found = [one.truncated_tokens > 0 for one in encode_lines(self.loaded, part, "end", self.prompt)]
            checked += len(found) - (0 if long else found.index(True))
            long += sum(found)
            part = self.reader.take() if parts < PARTS_CHECKED else []
            parts += 1
        if long == 1:
            return error
        fault, _, way_out = str(error).partition("; ")
        return TextTooLong(
            f"{fault}, and {long - 1:,} of the {checked - 1:,} lines after it are also too long; {way_out}",
            original_tokens=error.original_tokens,
            max_tokens=error.max_tokens,
        )


def _forward(report: Progress, first: int, total: int, done: int, _: int) -> None:
    report(first + done, total)
