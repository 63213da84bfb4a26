"""The settings of labeled data in a run file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from unmask.errors import InvalidRequest
from unmask.tasks.values import LongTexts, SchemeName
from unmask.training.run.loop_settings import at_least

AnswerOffsets = Literal["exact", "nearest"]
"""What to do with an answer that is not at its offset in the context: refuse it, or take the occurrence that
is nearest to it."""

Format = Literal["tsv", "csv", "jsonl", "parquet", "datasets", "conll", "conllu", "squad"]
"""The layout of labeled data: a table with a row per text, words with labels, or questions with contexts."""


@dataclass(frozen=True)
class DataSettings:
    """Labeled files and the meaning of their columns."""

    train: tuple[str, ...]
    """Paths or globs, relative to the run file."""
    dev: tuple[str, ...] = ()
    """Data to evaluate on, never trained on."""
    format: Format | None = None
    """None: by each file's extension, before .xz or .gz."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a table without a header row."""
    skip_short_lines: bool = False
    """TSV: leave out lines with too few columns and say how many they are, as programs for GLUE do with the
    official file of QQP. Otherwise such a line is an error."""
    answer_offsets: AnswerOffsets = "exact"
    """Answering: refuse a file with an answer that is not at its answer_start, or train on the nearest
    occurrence of each, and say how many they are."""
    text: str = "text"
    """The column of the text, of the words of a text, or of the question of a multiple choice."""
    pair: str | None = None
    """The column of the second text of a pair. Of a multiple choice, the beginning of every choice."""
    both_orders: bool = False
    """Train on every pair in both orders, for tasks in which the order means nothing, such as paraphrases."""
    choices: tuple[str, ...] = ()
    """Of a multiple choice, needed: the column of the list of choices, or one column for each choice."""
    label: str = "label"
    """The column of the label, the number, the list of labels, the list of a text's word labels, or the
    right choice: its number, counted from 0, or its text. In CoNLL
    files a column number, counted from 0 or, with a minus sign, from the end; in CoNLL-U its name."""
    query: str = "query"
    """Of retrieval, the column of the query."""
    positive: str = "positive"
    """Of retrieval, the column of the document that answers it."""
    negative: str | None = None
    """Of retrieval, the column of a document that does not, or of a list of them; None for the columns
    ``negative`` and ``negatives`` if there are such."""
    scores: str | None = None
    """Of retrieval, the column of a list of a teacher's scores: of the positive document, then of each
    negative. None reads none."""
    labels: tuple[str, ...] = ()
    """The labels in the order of the head. Empty: those of the training data, sorted."""
    rename_labels: Mapping[str, str] = field(default_factory=dict)
    """Names for labels that the data spell otherwise, such as 0 = "negative"."""
    strip_prefix: str = ""
    """What stands before every word of a CoNLL file and is left out, such as the "en:" of WikiANN."""
    scheme: SchemeName | None = None
    """Tagging: rewrite the entities of the data in this scheme, such as IOB2 for data in IOB1. None keeps the
    labels."""
    max_tokens: int | None = None
    """The longest text, special tokens included; None for what the model reads."""
    long_texts: LongTexts = "end"
    """What to do with a longer one: refuse it, drop its end (and report how many tokens are dropped), or
    train on overlapping windows of it. Contexts of questions are read in windows with ``"end"`` too."""
    overlap_tokens: int | None = None
    """Tokens that neighboring windows share; None for 64, or a quarter of a smaller window."""

    def __post_init__(self) -> None:
        for name in ("train", "dev", "choices"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.train:
            raise InvalidRequest("train is empty; name at least one file")
        if self.both_orders and (self.pair is None or self.choices):
            raise InvalidRequest("both_orders is true and the data have no pairs; set pair, or leave it out")
        if len(set(self.labels)) != len(self.labels):
            raise InvalidRequest(f"labels names a label twice: {', '.join(self.labels)}")
        at_least("max_tokens", self.max_tokens, 3)
        at_least("overlap_tokens", self.overlap_tokens, 0)
